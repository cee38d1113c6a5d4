#include "layerpress/source/column_groups.h"

#include <ATen/ATen.h>

#include "layerpress/quant/container_format.h"

namespace layerpress::source {

ColumnGroups::ColumnGroups(const ModuleTensors& tensors, const std::string& suffix, std::int64_t columns,
                           std::int64_t group_size) {
  (void)tensors.spec(suffix, {at::kInt});
  tensors.require_shape(suffix, {columns});
  const at::Tensor groups = tensors.get(suffix).to(at::kLong);
  if (groups.eq(-1).all().item<bool>()) return;  // never set
  const at::Tensor in_order = at::arange(columns, at::kLong).div_(group_size, "floor");
  if (at::equal(groups, in_order)) return;
  order_ = groups.argsort(/*stable=*/true);
  if (!at::equal(groups.index_select(0, order_), in_order))
    tensors.refuse(suffix, fmt::format("does not put {} columns into each group", group_size));
  inverse_ = order_.argsort(/*stable=*/true);
}

at::Tensor ColumnGroups::sorted(const at::Tensor& matrix) const {
  return in_order() ? matrix : matrix.index_select(1, order_);
}

at::Tensor ColumnGroups::restored(const at::Tensor& matrix) const {
  return in_order() ? matrix : matrix.index_select(1, inverse_);
}

}  // namespace layerpress::source
