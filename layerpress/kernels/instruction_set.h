#pragma once

#include <c10/core/ScalarType.h>

#include "layerpress/kernels/cpu/table.h"

namespace layerpress::kernels {

/// The instruction set whose kernels run on this machine: "baseline", "avx2", "avx512", "avx512_bf16" or "amx". The last bits
/// of results differ between them.
inline const char* instruction_set() { return cpu::table().name; }

/// The dtype in which a CPU multiplies values of this dtype: bf16 if the instruction set has dot products of it,
/// otherwise fp32. Sums are fp32.
at::ScalarType arithmetic(at::ScalarType dtype);

}  // namespace layerpress::kernels
