#pragma once

#include <ATen/core/Tensor.h>

#include "layerpress/source/module_tensors.h"

namespace layerpress::source {

/// Which columns share scales, where they are not neighbours because GPTQ sorted them ("g_idx").
class ColumnGroups {
 public:
  /// Columns in groups of `group_size` as stored in order.
  ColumnGroups() = default;
  /// From I32 [columns]: a group for each column. Throws DamagedWeightsError unless every group has `group_size` columns.
  ColumnGroups(const ModuleTensors& tensors, const std::string& suffix, std::int64_t columns, std::int64_t group_size);

  /// Whether neighbours share scales, as most formats have it.
  bool in_order() const { return !order_.defined(); }
  /// The columns [rows, columns] so that neighbours share scales, and back.
  at::Tensor sorted(const at::Tensor& matrix) const;
  at::Tensor restored(const at::Tensor& matrix) const;

 private:
  at::Tensor order_, inverse_;
};

}  // namespace layerpress::source
