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
  at::Tensor output = values.output_original.to(at::kDouble);
  if (bias.defined()) output = output - bias.to(at::kDouble);
  const at::Tensor difference = values.stream_original.to(at::kDouble) - values.stream.to(at::kDouble);
  const at::Tensor all = shares.output * output + shares.stream * difference;
  return all.t().mm(values.x.to(at::kDouble));
}

}  // namespace layerpress::kernels
