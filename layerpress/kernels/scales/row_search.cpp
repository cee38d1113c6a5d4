#include "layerpress/kernels/scales/row_search.h"

#include <ATen/ATen.h>
#include <c10/core/DeviceGuard.h>

#include "layerpress/kernels/device_types.h"
#include "layerpress/kernels/scales/search_patience.h"

namespace layerpress::kernels {
namespace {

ChosenScales search_all(RowSearcher searcher, const at::Tensor& weight, const ScaleGrid& grid, const RangeRule& rule,
                        const ScaleSearch& search, const ScaleFormat& stored, const at::Tensor& importance,
                        Improving& improving) {
  const c10::DeviceGuard guard(weight.device());  // kernels are launched on the current device
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
  task.exponent = static_cast<float>(search.exponent);
  task.expand = static_cast<float>(search.expand);
  task.element = rule.element;
  task.kind = !rule.symmetric     ? cuda::RangeKind::kAsymmetric
              : rule.signed_scale ? cuda::RangeKind::kSigned
                                  : cuda::RangeKind::kSymmetric;
  task.stored = stored;
  ChosenScales chosen;
  chosen.scale = at::empty({task.rows, task.blocks_across()}, wide);
  task.scales = chosen.scale.data_ptr<float>();
  if (!rule.symmetric) {
    chosen.zero_point = at::empty_like(chosen.scale);
    task.zero_points = chosen.zero_point.data_ptr<float>();
  }
  at::Tensor improved;
  if (!improving.empty()) {
    improved = at::zeros({task.candidates}, rows.options().dtype(at::kByte));
    task.improving = improved.data_ptr<std::uint8_t>();
  }
  searcher(task);
  if (improved.defined()) {
    const at::Tensor on_host = improved.cpu();
    for (std::size_t c = 0; c < improving.size(); ++c) improving[c] |= on_host.const_data_ptr<std::uint8_t>()[c];
  }
  return chosen;
}

}  // namespace

ChosenScales search_rows_by(RowSearcher searcher, const at::Tensor& weight, const ScaleGrid& grid,
                            const RangeRule& rule, const ScaleSearch& search, const ScaleFormat& stored,
                            const at::Tensor& importance, const std::vector<OtherRows>& others) {
  return search_with_patience(
      weight, search, others, [&](const at::Tensor& rows, const ScaleSearch& candidates, Improving& improving) {
        return search_all(searcher, rows, grid, rule, candidates, stored, importance, improving);
      });
}

}  // namespace layerpress::kernels
