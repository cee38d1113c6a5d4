#include "layerpress/kernels/row_search.h"

#include <ATen/ATen.h>
#include <c10/core/DeviceGuard.h>

#include "layerpress/kernels/device_types.h"

namespace layerpress::kernels {
ChosenScales search_rows_by(RowSearcher searcher, const at::Tensor& weight, const ScaleGrid& grid,
                            const RangeRule& rule, const ScaleSearch& search, at::ScalarType stored,
                            const at::Tensor& importance) {
  const c10::DeviceGuard guard(weight.device());  // kernels go to the current device
  const at::Tensor rows = (device_number(weight.scalar_type()) ? weight : weight.to(at::kFloat)).contiguous();
  const at::TensorOptions wide = rows.options().dtype(at::kFloat);
  const at::Tensor shrink = at::tensor(search.shrink, at::kFloat).to(rows.device());
  const at::Tensor weights_of_error = importance.defined() ? importance.to(at::kFloat).contiguous() : at::Tensor();
  cuda::ScaleSearchTask task;
  task.weight = rows.const_data_ptr();
  task.number = device_number(rows.scalar_type()).value();
  task.rows = rows.size(0);
  task.columns = rows.size(1);
  task.block_columns = grid.block_columns;
  if (importance.defined()) task.importance = weights_of_error.const_data_ptr<float>();
  task.shrink = shrink.const_data_ptr<float>();
  task.candidates = static_cast<std::int32_t>(search.shrink.size());
  task.patience = search.patience;
  task.exponent = static_cast<float>(search.exponent);
  task.codebook = device_codebook(rule.codebook);
  task.symmetric = rule.symmetric;
  task.stored = device_number(stored).value();
  task.smallest = static_cast<float>(smallest_scale(stored));
  ChosenScales chosen;
  chosen.scale = at::empty({task.rows, task.blocks_across()}, wide);
  task.scales = chosen.scale.data_ptr<float>();
  if (!rule.symmetric) {
    chosen.zero_point = at::empty_like(chosen.scale);
    task.zero_points = chosen.zero_point.data_ptr<float>();
  }
  searcher(task);
  return chosen;
}

}  // namespace layerpress::kernels
