#pragma once

#include <vector>

#include "layerpress/kernels/cpu/table.h"

namespace layerpress::kernels {

/// The kernels of every instruction set that the machine has, the lowest first and the chosen one last.
inline std::vector<const cpu::Table*> available_tables() {
  std::vector<const cpu::Table*> tables = {&cpu::baseline::isa_table()};
#if defined(__x86_64__)
  __builtin_cpu_init();
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) tables.push_back(&cpu::avx2::isa_table());
  if (__builtin_cpu_supports("avx512vl")) tables.push_back(&cpu::avx512::isa_table());
  if (__builtin_cpu_supports("avx512bf16")) tables.push_back(&cpu::avx512_bf16::isa_table());
#endif
  tables.push_back(&cpu::table());
  return tables;
}

}  // namespace layerpress::kernels
