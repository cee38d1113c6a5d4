#pragma once

#include <ATen/ATen.h>

#include "layerpress/kernels/layers/output_cross.h"

// The sums of gram.h and output_cross.h in double precision, whole matrices.
namespace layerpress::kernels {

inline at::Tensor plain_gram(const at::Tensor& x) {
  const at::Tensor wide = x.to(at::kDouble);
  return wide.t().mm(wide);
}

inline at::Tensor plain_cross_gram(const at::Tensor& original, const at::Tensor& x) {
  const at::Tensor wide = x.to(at::kDouble);
  return (original.to(at::kDouble) - wide).t().mm(wide);
}

inline at::Tensor plain_output_cross(const ResidualValues& values, const at::Tensor& bias,
                                     const ResidualShares& shares) {
  const auto difference = [&](const at::Tensor& a, const at::Tensor& b) {
    return (a.to(at::kDouble) - b.to(at::kDouble)) / shares.factor;
  };
  at::Tensor written = difference(values.written_original, values.stream_original);
  if (bias.defined()) written -= bias.to(at::kDouble);
  const at::Tensor all = shares.written * written + shares.stream * difference(values.stream_original, values.stream);
  return all.t().mm(values.x.to(at::kDouble));
}

}  // namespace layerpress::kernels
