#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>

#include "layerpress/base/error.h"
#include "layerpress/kernels/cpu/table.h"

namespace layerpress::kernels::cpu {

namespace {

/// Whether tiles of bf16 exist and the kernel lets this process use them. Linux gives a process their eight kilobytes of state only on
/// request (Documentation/arch/x86/xstate.rst).
bool tiles_granted() {
  unsigned int eax = 0, ebx = 0, ecx = 0, edx = 0;
  constexpr unsigned int kBfloat16 = 1u << 22, kTiles = 1u << 24;
  if (__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) == 0 || (edx & kBfloat16) == 0 || (edx & kTiles) == 0)
    return false;
#if defined(SYS_arch_prctl)
  constexpr int kRequestPermission = 0x1023, kTileData = 18;
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
#else
  return false;
#endif
}

const Table& choose() {
  constexpr std::array kNames = {"amx", "avx512_bf16", "avx512", "avx2", "baseline"};
  const char* wanted = std::getenv("LAYERPRESS_CPU");
  if (wanted != nullptr && *wanted == '\0') wanted = nullptr;
  if (wanted != nullptr &&
      std::none_of(kNames.begin(), kNames.end(), [&](const char* name) { return std::strcmp(wanted, name) == 0; }))
    throw UsageError(
        "[kernels] LAYERPRESS_CPU: '{}' is no instruction set; choose from amx, avx512_bf16, avx512, avx2, baseline",
        wanted);
  const auto offered = [&](const char* name, bool supported) {
    // If the machine lacks the requested set, the next lower one is used.
    if (wanted != nullptr && std::strcmp(wanted, name) == 0) wanted = nullptr;
    return supported && wanted == nullptr;
  };
  __builtin_cpu_init();
  const bool v3 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi2");
  const bool v4 = v3 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                  __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
  const bool bf16 = v4 && __builtin_cpu_supports("avx512bf16");
  // Intel's cores multiply pairs of bfloat16 at 0.7 to 0.8 of the speed of fp32 (Emerald Rapids without AMX, as in virtual machines); AMD's
  // at twice the speed.
  const bool pairs_pay = !__builtin_cpu_is("intel") || (wanted != nullptr && std::strcmp(wanted, "avx512_bf16") == 0);
  if (offered("amx", bf16 && tiles_granted())) return amx::isa_table();
  if (offered("avx512_bf16", bf16 && pairs_pay)) return avx512_bf16::isa_table();
  if (offered("avx512", v4)) return avx512::isa_table();
  if (offered("avx2", v3)) return avx2::isa_table();
  return baseline::isa_table();
}

}  // namespace

const Table& table() {
  static const Table& kBest = choose();
  return kBest;
}

}  // namespace layerpress::kernels::cpu
