#include "layerpress/kernels/row_search.h"

#include <ATen/ATen.h>
#include <c10/core/DeviceGuard.h>

#include "layerpress/base/error.h"
#include "layerpress/kernels/cpu/table.h"

namespace layerpress::kernels {
namespace {

cuda::Number number_of(at::ScalarType dtype) {
  switch (dtype) {
    case at::kBFloat16:
      return cuda::Number::kBf16;
    case at::kHalf:
      return cuda::Number::kHalf;
    case at::kFloat:
      return cuda::Number::kFloat;
    default:
      throw InternalError("[kernels.row_search] no kernel for {}", c10::toString(dtype));
  }
}

bool has_number(at::ScalarType dtype) { return dtype == at::kBFloat16 || dtype == at::kHalf || dtype == at::kFloat; }

}  // namespace

ChosenScales search_rows_by(RowSearcher searcher, const at::Tensor& weight, const ScaleGrid& grid,
                            const RangeRule& rule, const ScaleSearch& search, at::ScalarType stored,
                            const at::Tensor& importance) {
  const c10::DeviceGuard guard(weight.device());  // kernels go to the current device
  const at::Tensor rows = (has_number(weight.scalar_type()) ? weight : weight.to(at::kFloat)).contiguous();
  const at::TensorOptions wide = rows.options().dtype(at::kFloat);
  const at::Tensor shrink = at::tensor(search.shrink, at::kFloat).to(rows.device());
  const at::Tensor weights_of_error = importance.defined() ? importance.to(at::kFloat).contiguous() : at::Tensor();
  cuda::ScaleSearchTask task;
  task.weight = rows.const_data_ptr();
  task.number = number_of(rows.scalar_type());
  task.rows = rows.size(0);
  task.columns = rows.size(1);
  task.block_columns = grid.block_columns;
  if (importance.defined()) task.importance = weights_of_error.const_data_ptr<float>();
  task.shrink = shrink.const_data_ptr<float>();
  task.candidates = static_cast<std::int32_t>(search.shrink.size());
  task.patience = search.patience;
  task.exponent = static_cast<float>(search.exponent);
  const cpu::Codebook book = cpu_codebook(rule.codebook);
  task.codebook = {book.fp8, book.minimum, book.maximum};
  task.symmetric = rule.symmetric;
  task.stored = number_of(stored);
  task.smallest = static_cast<float>(smallest_scale(stored));
  ChosenScales chosen;
  chosen.scale = at::empty({task.rows, (task.columns + task.block_columns - 1) / task.block_columns}, wide);
  task.scales = chosen.scale.data_ptr<float>();
  if (!rule.symmetric) {
    chosen.zero_point = at::empty_like(chosen.scale);
    task.zero_points = chosen.zero_point.data_ptr<float>();
  }
  searcher(task);
  return chosen;
}

}  // namespace layerpress::kernels
