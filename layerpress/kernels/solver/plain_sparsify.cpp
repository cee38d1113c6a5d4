#include <ATen/ATen.h>

#include <algorithm>

#include "layerpress/kernels/products/gram.h"
#include "layerpress/kernels/solver/sparsify.h"

namespace layerpress::kernels {
namespace {

/// The upper Cholesky factor of the damped matrix's inverse.
at::Tensor inverse_factor_of(const at::Tensor& gram, double dampening) {
  at::Tensor hessian = symmetric_from_upper(gram.to(at::kDouble));
  at::Tensor diagonal = hessian.diagonal();
  diagonal.masked_fill_(diagonal.eq(0), 1);
  diagonal.add_(diagonal.mean() * dampening);
  return at::linalg_cholesky(at::inverse(hessian), /*upper=*/true);
}

/// Adds the least scores of each row's group to `mask`, up to its number of zeros.
void prune_group(const at::Tensor& scores, const SparsePattern& pattern, at::Tensor mask) {
  for (std::int64_t row = 0; row < scores.size(0); ++row)
    while (mask[row].sum().item<std::int64_t>() < pattern.pruned)
      mask[row][scores[row].masked_fill(mask[row], INFINITY).argmin()] = true;
}

}  // namespace

SparseWeight plain_sparsify(const at::Tensor& weight, const at::Tensor& gram, double dampening,
                            const SparsifyOptions& options) {
  const auto& [pattern, block_size, keeps_zeros] = options;
  const at::Tensor upper = inverse_factor_of(gram, dampening);
  at::Tensor w = weight.to(at::kDouble).clone();
  w.masked_fill_(gram.diagonal().eq(0), 0);
  const at::Tensor zeros = keeps_zeros ? w.eq(0) : at::zeros_like(w, at::kBool);
  double loss = 0;
  for (std::int64_t begin = 0, end = 0; begin < w.size(1); begin = end) {
    end = std::min(begin + block_size, w.size(1));
    const auto scores = [&](std::int64_t first, std::int64_t last) {
      return (w.slice(1, first, last) / upper.diagonal().slice(0, first, last)).square();
    };
    at::Tensor mask = zeros.slice(1, begin, end).clone();
    if (pattern.group == 0) {
      const auto place = static_cast<std::int64_t>(static_cast<double>(mask.numel()) * pattern.sparsity);
      const at::Tensor all = scores(begin, end).masked_fill(mask, 0);
      if (mask.sum().item<std::int64_t>() < place || !keeps_zeros)
        mask = all.le(std::get<0>(all.flatten().sort())[place]);
    }
    for (std::int64_t j = begin; j < end; ++j) {
      if (pattern.group > 0 && (j - begin) % pattern.group == 0)
        prune_group(scores(j, j + pattern.group), pattern, mask.slice(1, j - begin, j - begin + pattern.group));
      const at::Tensor error = w.select(1, j) * mask.select(1, j - begin) / upper[j][j];
      loss += error.square().sum().item<double>();
      w.slice(1, j).sub_(error.outer(upper[j].slice(0, j)));
      w.select(1, j).masked_fill_(mask.select(1, j - begin), 0);
    }
  }
  return {w, loss};
}

}  // namespace layerpress::kernels
