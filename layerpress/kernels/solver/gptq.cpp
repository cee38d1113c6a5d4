#include "layerpress/kernels/solver/gptq.h"

#include <ATen/ATen.h>

#include "layerpress/kernels/cpu/table.h"
#include "layerpress/kernels/solver/block_solver.h"
#include "layerpress/kernels/solver/column_solver.h"

namespace layerpress::kernels {
namespace {

/// The recursion for one weight with ATen operations.
class ColumnwiseSolver {
 public:
  ColumnwiseSolver(const GptqWeight& task, const HessianFactor& factor, const ElementType& element)
      : scales_(task.scales),
        factor_(factor),
        element_(element),
        residual_(task.weight.to(at::kFloat).index_select(1, factor.order)),
        zeros_(task.keeps_zeros ? residual_.eq(0) : at::Tensor()),
        codes_(at::empty(residual_.sizes(), residual_.options().dtype(at::kChar))),
        groups_(factor.order.floor_divide(scales_.columns_per_group).cpu()),
        loss_(at::zeros({}, residual_.options().dtype(at::kDouble))) {}

  /// Returns the codes and adds the loss to `total_loss`.
  at::Tensor solve(const std::optional<GroupSearch>& search, double& total_loss) {
    const std::int64_t columns = residual_.size(1);
    for (std::int64_t begin = 0, end = 0; begin < columns; begin = end) {
      end = begin + 1;
      while (end < columns && group_of(end) == group_of(begin)) ++end;
      at::Tensor running = residual_.slice(1, begin, end) +
                           residual_.slice(1, 0, begin).mm(factor_.feedback.slice(0, 0, begin).slice(1, begin, end));
      if (search) search_scales(*search, running, begin);
      loss_ += quantize(running, begin, /*keeps=*/true).sum();
    }
    total_loss += loss_.item<double>();
    return codes_.index_select(1, at::argsort(factor_.order));
  }

 private:
  std::int64_t group_of(std::int64_t column) const { return groups_.const_data_ptr<std::int64_t>()[column]; }

  at::Tensor per_row(const at::Tensor& blocks, std::int64_t group) const {
    if (!blocks.defined()) return blocks;
    return blocks.select(1, group).repeat_interleave(scales_.rows_per_group).narrow(0, 0, residual_.size(0));
  }

  /// Columns [begin, end) without what the feedback has added to weights that stay 0.
  at::Tensor without_zeros(const at::Tensor& running, std::int64_t begin, std::int64_t end) const {
    return zeros_.defined() ? running.masked_fill(zeros_.slice(1, begin, end).view(running.sizes()), 0) : running;
  }

  /// Quantizes columns of one group, starting from `running`, which is modified. Returns the loss of each row.
  at::Tensor quantize(at::Tensor running, std::int64_t begin, bool keeps) {
    const at::Tensor scale = per_row(scales_.scale, group_of(begin)),
                     zero = per_row(scales_.zero_point, group_of(begin));
    const std::int64_t end = begin + running.size(1);
    at::Tensor loss = at::zeros({running.size(0)}, loss_.options());
    for (std::int64_t j = begin; j < end; ++j) {
      const at::Tensor own = running.select(1, j - begin);
      const at::Tensor level = nearest_level(without_zeros(own, j, j + 1), scale, zero, element_);
      const at::Tensor value = level_value(level, scale, zero);
      const at::Tensor left = residual_.select(1, j) - value;
      loss += (own - value).to(at::kDouble).square() * factor_.pivots[j];
      running.slice(1, j + 1 - begin).add_(left.outer(factor_.feedback[j].slice(0, j + 1, end)));
      if (!keeps) continue;
      residual_.select(1, j).copy_(left);
      codes_.select(1, j).copy_(level_codes(level, element_));
    }
    return loss;
  }

  void search_scales(const GroupSearch& search, const at::Tensor& running, std::int64_t begin) {
    const at::Tensor kept = without_zeros(running, begin, begin + running.size(1));
    const at::Tensor low = kept.amin(1).clamp_max(0), high = kept.amax(1).clamp_min(0);
    at::Tensor least;
    ChosenScales best;
    for (const double shrink : search.shrink) {
      const ChosenScales candidate = qparams_of(low, high, shrink, search.rule, search.stored);
      set_scales(group_of(begin), candidate);
      const at::Tensor loss = quantize(running.clone(), begin, /*keeps=*/false);
      if (!least.defined()) {
        best = candidate;
        least = loss;
        continue;
      }
      const at::Tensor better = loss < least;
      best.scale = at::where(better, candidate.scale, best.scale);
      if (best.zero_point.defined()) best.zero_point = at::where(better, candidate.zero_point, best.zero_point);
      least = at::where(better, loss, least);
    }
    set_scales(group_of(begin), best);
  }

  void set_scales(std::int64_t group, const ChosenScales& chosen) {
    scales_.scale.select(1, group).copy_(chosen.scale);
    if (chosen.zero_point.defined()) scales_.zero_point.select(1, group).copy_(chosen.zero_point);
  }

  const ColumnScales& scales_;
  const HessianFactor& factor_;
  const ElementType& element_;
  at::Tensor residual_;
  at::Tensor zeros_;  // bool, in the order of quantization: what stays 0; undefined: nothing
  at::Tensor codes_, groups_, loss_;
};

}  // namespace

GptqResult gptq_by_columns(const std::vector<GptqWeight>& weights, const HessianFactor& factor,
                           const ElementType& element, const std::optional<GroupSearch>& search) {
  GptqResult result;
  for (const GptqWeight& weight : weights)
    result.codes.push_back(ColumnwiseSolver(weight, factor, element).solve(search, result.loss));
  return result;
}

bool searches_groups(const ScaleGrid& grid) { return grid.block_rows == 1 && grid.block_columns <= cpu::kMaximumBlock; }

GptqResult gptq(const std::vector<GptqWeight>& weights, const HessianFactor& factor, const ElementType& element,
                std::int64_t block_size, const std::optional<GroupSearch>& search) {
  if (weights.empty()) return {};
  if (const ColumnBlockSolver solver = column_block_solver(factor.feedback.device()))
    return gptq_by_blocks(weights, factor, element, block_size, search, solver);
  if (!factor.feedback.is_cpu()) return gptq_by_columns(weights, factor, element, search);
  GptqResult result;
  for (const GptqWeight& weight : weights) result.codes.push_back(at::empty(weight.weight.sizes(), at::kChar));
  result.loss = solve_columns(weights, factor, element, block_size, search, result.codes);
  return result;
}

}  // namespace layerpress::kernels
