#pragma once

#include "layerpress/kernels/cpu/table.h"

namespace layerpress::kernels {

/// The instruction set whose kernels run on this machine: "baseline", "avx2", "avx512" or "avx512_bf16". Results differ in
/// the last bits between them.
inline const char* instruction_set() { return cpu::table_name(); }

}  // namespace layerpress::kernels
