#include <ATen/ATen.h>

#include "layerpress/kernels/gptq.h"
#include "layerpress/kernels/gram.h"

namespace layerpress::kernels {

GptqResult gptq_reference(const at::Tensor& weight, const at::Tensor& gram, const FactorizeOptions& options,
                          const ColumnScales& scales, const Codebook& codebook) {
  const at::Tensor order = column_order(gram.diagonal(), options.activation_order);
  at::Tensor hessian = symmetric_from_upper(gram.to(at::kDouble)).index_select(0, order).index_select(1, order);
  at::Tensor diagonal = hessian.diagonal();
  diagonal.masked_fill_(diagonal.eq(0), 1);
  diagonal.add_(diagonal.mean() * options.dampening);
  const at::Tensor inverse_factor = at::linalg_cholesky(at::inverse(hessian), /*upper=*/true);
  at::Tensor w = weight.to(at::kDouble).index_select(1, order);
  at::Tensor codes = at::empty(w.sizes(), w.options().dtype(at::kChar));
  const auto per_row = [&](const at::Tensor& blocks, std::int64_t group) {
    return blocks.select(1, group).repeat_interleave(scales.rows_per_group).slice(0, 0, w.size(0)).to(at::kDouble);
  };
  double loss = 0;
  for (std::int64_t j = 0; j < w.size(1); ++j) {
    const std::int64_t group = order[j].item<std::int64_t>() / scales.columns_per_group;
    const at::Tensor scale = per_row(scales.scale, group);
    const at::Tensor zero = scales.zero_point.defined() ? per_row(scales.zero_point, group) : at::Tensor();
    const at::Tensor level = nearest_level(w.select(1, j), scale, zero, codebook);
    const at::Tensor error = (w.select(1, j) - level_value(level, scale, zero)) / inverse_factor[j][j];
    w.slice(1, j).sub_(error.outer(inverse_factor[j].slice(0, j)));
    codes.select(1, j).copy_(level_codes(level, codebook));
    loss += error.square().sum().item<double>();
  }
  return {{codes.index_select(1, at::argsort(order))}, loss};
}

}  // namespace layerpress::kernels
