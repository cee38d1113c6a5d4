#pragma once

#include <ATen/core/Tensor.h>

#include "layerpress/kernels/cpu/table.h"

namespace layerpress::kernels {

/// The elements of a bfloat16 tensor in the form that the vector kernels use. REQUIRES: contiguous, on the CPU.
inline const cpu::Bits16* bits(const at::Tensor& x) { return static_cast<const cpu::Bits16*>(x.const_data_ptr()); }
inline cpu::Bits16* mutable_bits(at::Tensor& x) { return static_cast<cpu::Bits16*>(x.data_ptr()); }

/// The same for the type T of the elements.
template <typename T>
const T* elements(const at::Tensor& x) {
  return static_cast<const T*>(x.const_data_ptr());
}
template <typename T>
T* mutable_elements(at::Tensor& x) {
  return static_cast<T*>(x.data_ptr());
}

/// Calls function(kernels) with the kernels for bfloat16 or fp32.
template <typename Function>
void with_elementwise(at::ScalarType dtype, Function&& function) {
  if (dtype == at::kBFloat16)
    function(cpu::table().bf16);
  else
    function(cpu::table().f32);
}

}  // namespace layerpress::kernels
