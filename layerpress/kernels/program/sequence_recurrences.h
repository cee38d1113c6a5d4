#pragma once

#include <ATen/core/Tensor.h>

#include <optional>

namespace layerpress::kernels {

// The recurrences of sequence_operators.h, in its shapes.

at::Tensor causal_conv1d(const at::Tensor& x, const at::Tensor& weight, const std::optional<at::Tensor>& bias,
                         c10::string_view activation);
/// g [1, T, heads], or [1, T, heads, features of k] for a decay per feature.
at::Tensor delta_rule(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const at::Tensor& g,
                      const at::Tensor& beta, bool l2norm);
at::Tensor mamba2_scan(const at::Tensor& x, const at::Tensor& dt, const at::Tensor& a, const at::Tensor& b,
                       const at::Tensor& c, const std::optional<at::Tensor>& d,
                       const std::optional<at::Tensor>& dt_bias, bool softplus, double low, double high);
at::Tensor selective_scan(const at::Tensor& x, const at::Tensor& dt, const at::Tensor& a, const at::Tensor& b,
                          const at::Tensor& c, const std::optional<at::Tensor>& d, const std::optional<at::Tensor>& z,
                          const std::optional<at::Tensor>& dt_bias, bool softplus);

}  // namespace layerpress::kernels
