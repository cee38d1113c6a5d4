#include <cstdlib>
#include <cstring>

#include "layerpress/kernels/cpu/table.h"

namespace layerpress::kernels::cpu {

namespace {

struct Choice {
  const Table& table;
  const char* name;
};

Choice choose() {
  const char* wanted = std::getenv("LAYERPRESS_CPU");
  const auto offered = [&](const char* name, bool supported) {
    // If the machine lacks the requested set, the next lower one is used.
    if (wanted != nullptr && std::strcmp(wanted, name) == 0) wanted = nullptr;
    return supported && wanted == nullptr;
  };
  __builtin_cpu_init();
  const bool v3 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi2");
  const bool v4 = v3 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                  __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
  if (offered("avx512_bf16", v4 && __builtin_cpu_supports("avx512bf16")))
    return {avx512_bf16::isa_table(), "avx512_bf16"};
  if (offered("avx512", v4)) return {avx512::isa_table(), "avx512"};
  if (offered("avx2", v3)) return {avx2::isa_table(), "avx2"};
  return {baseline::isa_table(), "baseline"};
}

const Choice& choice() {
  static const Choice kBest = choose();
  return kBest;
}

}  // namespace

const Table& table() { return choice().table; }

const char* table_name() { return choice().name; }

}  // namespace layerpress::kernels::cpu
