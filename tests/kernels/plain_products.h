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

inline at::Tensor plain_output_cross(const ResidualInputs& inputs, const at::Tensor& weight,
                                     const ResidualShares& shares) {
  const auto difference = [](const at::Tensor& a, const at::Tensor& b) {
    return a.to(at::kDouble) - b.to(at::kDouble);
  };
  const at::Tensor own = difference(inputs.original, inputs.x).mm(weight.to(at::kDouble).t());
  const at::Tensor all = shares.inputs * own + shares.stream * difference(inputs.stream_original, inputs.stream);
  return all.t().mm(inputs.x.to(at::kDouble));
}

}  // namespace layerpress::kernels
