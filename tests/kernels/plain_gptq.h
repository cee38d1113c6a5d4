#pragma once

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <optional>

#include "layerpress/kernels/products/gram.h"
#include "layerpress/kernels/solver/gptq.h"

namespace layerpress::kernels {

/// The textbook GPTQ with the Cholesky factor of the inverse, in double precision, one column at a time. `gram` as for factorize.
inline GptqResult plain_gptq(const at::Tensor& weight, const at::Tensor& gram, const FactorizeOptions& options,
                             const ColumnScales& scales, const ElementType& element,
                             const std::optional<GroupSearch>& search = {}, bool keeps_zeros = false) {
  const at::Tensor order = column_order(gram.diagonal(), options);
  at::Tensor hessian = symmetric_from_upper(gram.to(at::kDouble)).index_select(0, order).index_select(1, order);
  at::Tensor diagonal = hessian.diagonal();
  diagonal.masked_fill_(diagonal.eq(0), 1);
  diagonal.add_(diagonal.mean() * options.dampening);
  const at::Tensor inverse_factor = at::linalg_cholesky(at::inverse(hessian), /*upper=*/true);
  at::Tensor w = weight.to(at::kDouble).index_select(1, order);
  const at::Tensor zeros = keeps_zeros ? w.eq(0) : at::zeros_like(w, at::kBool);
  at::Tensor codes = at::empty(w.sizes(), w.options().dtype(at::kChar));
  const auto per_row = [&](const at::Tensor& blocks, std::int64_t group) {
    return blocks.select(1, group).repeat_interleave(scales.rows_per_group).slice(0, 0, w.size(0)).to(at::kDouble);
  };
  /// Quantizes column j of `from` and feeds its error back to the columns before `last`; stores its levels.
  const auto take_column = [&](at::Tensor& from, std::int64_t j, std::int64_t last, at::Tensor& level) {
    const std::int64_t group = order[j].item<std::int64_t>() / scales.columns_per_group;
    const at::Tensor scale = per_row(scales.scale, group);
    const at::Tensor zero = scales.zero_point.defined() ? per_row(scales.zero_point, group) : at::Tensor();
    level = nearest_level(from.select(1, j).masked_fill(zeros.select(1, j), 0), scale, zero, element);
    const at::Tensor error = (from.select(1, j) - level_value(level, scale, zero)) / inverse_factor[j][j];
    from.slice(1, j, last).sub_(error.outer(inverse_factor[j].slice(0, j, last)));
    return error.square();
  };
  /// Tries every candidate on the columns of the group that begins with column `first`; groups are consecutive.
  const auto search_group = [&](const at::Tensor& from, std::int64_t first) {
    const std::int64_t group = order[first].item<std::int64_t>() / scales.columns_per_group;
    const std::int64_t last = std::min(first + scales.columns_per_group, from.size(1));
    const at::Tensor part = from.slice(1, first, last).masked_fill(zeros.slice(1, first, last), 0).to(at::kFloat);
    const at::Tensor low = part.amin(1).clamp_max(0), high = part.amax(1).clamp_min(0);
    at::Tensor scale = scales.scale.select(1, group), best_scale = scale.clone();
    at::Tensor zero = scales.zero_point.defined() ? scales.zero_point.select(1, group) : at::Tensor();
    at::Tensor best_zero = zero.defined() ? zero.clone() : zero;
    at::Tensor least = at::full({from.size(0)}, INFINITY, from.options());
    for (const double shrink : search->shrink) {
      const ChosenScales candidate = qparams_of(low, high, shrink, search->rule, search->stored);
      scale.copy_(candidate.scale);
      if (zero.defined()) zero.copy_(candidate.zero_point);
      at::Tensor trial = from.clone(), level, sum = at::zeros_like(least);
      for (std::int64_t j = first; j < last; ++j) sum += take_column(trial, j, last, level);
      const at::Tensor better = sum < least;
      best_scale = at::where(better, scale, best_scale);
      if (zero.defined()) best_zero = at::where(better, zero, best_zero);
      least = at::where(better, sum, least);
    }
    scale.copy_(best_scale);
    if (zero.defined()) zero.copy_(best_zero);
  };
  double loss = 0;
  for (std::int64_t j = 0; j < w.size(1); ++j) {
    if (search && j % scales.columns_per_group == 0) search_group(w, j);
    at::Tensor level;
    loss += take_column(w, j, w.size(1), level).sum().item<double>();
    codes.select(1, j).copy_(level_codes(level, element));
  }
  return {{codes.index_select(1, at::argsort(order))}, loss};
}

}  // namespace layerpress::kernels
