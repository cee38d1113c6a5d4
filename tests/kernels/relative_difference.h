#pragma once

#include <ATen/ATen.h>

namespace layerpress::kernels {

/// |a - b| / |b| in double precision.
inline double relative_difference(const at::Tensor& a, const at::Tensor& b) {
  const at::Tensor expected = b.to(at::kDouble);
  return ((a.to(at::kDouble) - expected).norm() / expected.norm()).item<double>();
}

}  // namespace layerpress::kernels
