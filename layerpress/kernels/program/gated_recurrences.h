#pragma once

#include <ATen/core/Tensor.h>

namespace layerpress::kernels {

// More recurrences of sequence_operators.h, in its shapes. Their states have gates instead of a step of time.

at::Tensor wkv(const at::Tensor& decay, const at::Tensor& first, const at::Tensor& key, const at::Tensor& value);
at::Tensor linear_recurrence(const at::Tensor& x, const at::Tensor& decay);
at::Tensor mlstm(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const at::Tensor& input,
                 const at::Tensor& forget, double epsilon);

}  // namespace layerpress::kernels
