#pragma once

#include <ATen/core/Tensor.h>

#include "layerpress/kernels/cpu/table.h"

namespace layerpress::kernels {

/// The elements of a bfloat16 tensor in the form that the vector kernels use. REQUIRES: contiguous, on the CPU.
inline const cpu::Bits16* bits(const at::Tensor& x) { return static_cast<const cpu::Bits16*>(x.const_data_ptr()); }
inline cpu::Bits16* mutable_bits(at::Tensor& x) { return static_cast<cpu::Bits16*>(x.data_ptr()); }

}  // namespace layerpress::kernels
