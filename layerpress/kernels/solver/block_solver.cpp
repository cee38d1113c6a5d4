#include "layerpress/kernels/solver/block_solver.h"

#include <ATen/ATen.h>
#include <c10/core/DeviceGuard.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "layerpress/base/error.h"
#include "layerpress/kernels/device_types.h"

namespace layerpress::kernels {
namespace {

constexpr std::int64_t kStackElements = 1 << 26;

/// Consecutive weights whose rows are solved together.
using Stack = std::vector<const GptqWeight*>;

/// Blocks of rows that share a scale have the same size in all of a stack, and must not span two weights.
bool continues(const Stack& stack, const GptqWeight& weight) {
  const GptqWeight& last = *stack.back();
  return last.weight.size(0) % last.scales.rows_per_group == 0 &&
         weight.scales.rows_per_group == last.scales.rows_per_group && weight.keeps_zeros == last.keeps_zeros;
}

std::vector<Stack> cut_into_stacks(const std::vector<GptqWeight>& weights) {
  std::vector<Stack> stacks;
  std::int64_t elements = 0;
  for (const GptqWeight& weight : weights) {
    if (stacks.empty() || elements + weight.weight.numel() > kStackElements || !continues(stacks.back(), weight)) {
      stacks.emplace_back();
      elements = 0;
    }
    stacks.back().push_back(&weight);
    elements += weight.weight.numel();
  }
  return stacks;
}

/// One tensor per weight of the stacks, concatenated by rows.
template <typename Part>
at::Tensor joined(const std::vector<Stack>& stacks, Part&& part) {
  std::vector<at::Tensor> parts;
  for (const Stack& stack : stacks)
    for (const GptqWeight* weight : stack) parts.push_back(part(*weight));
  return parts.front().defined() ? at::cat(parts).contiguous() : at::Tensor();
}

std::int64_t rows_of(const Stack& stack) {
  std::int64_t rows = 0;
  for (const GptqWeight* weight : stack) rows += weight->weight.size(0);
  return rows;
}

/// Solves problems of equal shapes, each of which is a stack.
class StackSolver {
 public:
  /// `factors`: of each problem.
  StackSolver(const std::vector<Stack>& stacks, const HessianFactor& factors, const ElementType& element,
              ColumnBlockSolver solver)
      : stacks_(stacks),
        factors_(factors),
        solver_(solver),
        element_(element),
        scale_(joined(stacks, [](const GptqWeight& weight) { return weight.scales.scale; })),
        zero_point_(joined(stacks, [](const GptqWeight& weight) { return weight.scales.zero_point; })),
        group_(factors.order.floor_divide(scales().columns_per_group).to(at::kInt)) {
    const auto problems = static_cast<std::int64_t>(stacks.size()), rows = rows_of(stacks.front());
    residual_ = at::empty({problems, rows, factors.order.size(1)}, factors.feedback.options());
    codes_ = at::empty(residual_.sizes(), residual_.options().dtype(at::kChar));
    loss_ = at::zeros({problems, rows}, residual_.options().dtype(at::kDouble));
    each_weight([&](std::int64_t problem, std::int64_t first, const GptqWeight& weight) {
      at::Tensor own = residual_[problem].narrow(0, first, weight.weight.size(0));
      own.copy_(weight.weight.index_select(1, factors.order[problem]));
    });
  }

  /// The codes and the loss of each problem.
  std::vector<GptqResult> solve(std::int64_t block_size, const std::optional<GroupSearch>& search) {
    const std::int64_t columns = residual_.size(2);
    if (search) group_on_host_ = group_[0].cpu();
    for (std::int64_t begin = 0, end = 0; begin < columns; begin = end) {
      end = search ? end_of_group(begin) : std::min(begin + block_size, columns);
      solve_block(begin, end, search);
    }
    std::vector<GptqResult> results(stacks_.size());
    const at::Tensor place = at::argsort(factors_.order, /*dim=*/std::int64_t{1});
    std::int64_t first_block = 0;
    each_weight([&](std::int64_t problem, std::int64_t first, const GptqWeight& weight) {
      const at::Tensor own = codes_[problem].narrow(0, first, weight.weight.size(0));
      results[static_cast<std::size_t>(problem)].codes.push_back(own.index_select(1, place[problem]));
      const ColumnScales& scales = weight.scales;
      if (search) {
        scales.scale.copy_(scale_.narrow(0, first_block, scales.scale.size(0)));
        if (scales.zero_point.defined())
          scales.zero_point.copy_(zero_point_.narrow(0, first_block, scales.scale.size(0)));
      }
      first_block += scales.scale.size(0);
    });
    const at::Tensor losses = loss_.sum(1).cpu();
    for (std::size_t p = 0; p < results.size(); ++p) results[p].loss = losses.const_data_ptr<double>()[p];
    return results;
  }

 private:
  const ColumnScales& scales() const { return stacks_.front().front()->scales; }

  /// Calls function(problem, the weight's first row in the problem, weight).
  template <typename Function>
  void each_weight(Function&& function) const {
    for (std::size_t problem = 0; problem < stacks_.size(); ++problem) {
      std::int64_t first = 0;
      for (const GptqWeight* weight : stacks_[problem]) {
        function(static_cast<std::int64_t>(problem), first, *weight);
        first += weight->weight.size(0);
      }
    }
  }

  std::int64_t end_of_group(std::int64_t begin) const {
    const std::int32_t* group = group_on_host_.const_data_ptr<std::int32_t>();
    std::int64_t end = begin + 1;
    while (end < residual_.size(2) && group[end] == group[begin]) ++end;
    return end;
  }

  void solve_block(std::int64_t begin, std::int64_t end, const std::optional<GroupSearch>& search) {
    const at::Tensor originals = residual_.slice(2, begin, end), upper = factors_.feedback.slice(2, begin, end),
                     feedback = upper.slice(1, begin, end);
    const at::Tensor running =
        begin == 0 ? originals.contiguous()
                   : at::baddbmm(originals, residual_.slice(2, 0, begin), upper.slice(1, 0, begin)).contiguous();
    cuda::ColumnBlockTask task;
    task.problems = static_cast<std::int32_t>(residual_.size(0));
    task.rows = residual_.size(1);
    task.columns = static_cast<std::int32_t>(end - begin);
    task.running = running.const_data_ptr<float>();
    task.residual = residual_.data_ptr<float>() + begin;
    task.residual_stride = residual_.stride(1);
    task.codes = codes_.data_ptr<std::int8_t>() + begin;
    task.codes_stride = codes_.stride(1);
    task.feedback = feedback.const_data_ptr<float>();
    task.feedback_stride = feedback.stride(1);
    task.feedback_apart = feedback.stride(0);
    task.pivots = factors_.pivots.const_data_ptr<float>() + begin;
    task.scales = scale_.data_ptr<float>();
    if (zero_point_.defined()) task.zero_points = zero_point_.data_ptr<float>();
    task.groups = scale_.size(1);
    task.rows_per_group = scales().rows_per_group;
    task.group_of_column = group_.const_data_ptr<std::int32_t>() + begin;
    task.columns_apart = residual_.size(2);
    task.element = element_;
    task.keeps_zeros = stacks_.front().front()->keeps_zeros;
    task.loss = loss_.data_ptr<double>();
    const at::Tensor kept = task.keeps_zeros && search ? running.masked_fill(originals.eq(0), 0) : running;
    const ChosenScales candidates = search ? candidates_of(kept.flatten(0, 1), *search) : ChosenScales();
    if (search) {
      task.candidates = static_cast<std::int32_t>(search->shrink.size());
      task.candidates_apart = loss_.numel();
      task.candidate_scales = candidates.scale.const_data_ptr<float>();
      if (candidates.zero_point.defined()) task.candidate_zero_points = candidates.zero_point.const_data_ptr<float>();
    }
    solver_(task);
  }

  /// The candidates for each row's scale, [candidates, rows].
  static ChosenScales candidates_of(const at::Tensor& running, const GroupSearch& search) {
    const at::Tensor low = running.amin(1).clamp_max(0), high = running.amax(1).clamp_min(0);
    std::vector<at::Tensor> scales, zero_points;
    for (const double shrink : search.shrink) {
      const ChosenScales candidate = qparams_of(low, high, shrink, search.rule, search.stored);
      scales.push_back(candidate.scale);
      if (candidate.zero_point.defined()) zero_points.push_back(candidate.zero_point);
    }
    return {at::stack(scales), zero_points.empty() ? at::Tensor() : at::stack(zero_points)};
  }

  const std::vector<Stack>& stacks_;
  const HessianFactor& factors_;
  ColumnBlockSolver solver_;
  ElementType element_;
  at::Tensor scale_, zero_point_;
  at::Tensor group_;             // int32 [problems, K], group of each column in the order of quantization
  at::Tensor group_on_host_;     // group_ of the first problem
  at::Tensor residual_, codes_;  // [problems, rows, K] in the order of quantization
  at::Tensor loss_;              // fp64 [problems, rows]
};

std::int64_t columns_at_once(std::int64_t block_size) {
  return std::clamp<std::int64_t>(block_size, 1, cuda::kMaximumBlock);
}

}  // namespace

GptqResult gptq_by_blocks(const std::vector<GptqWeight>& weights, const HessianFactor& factor,
                          const ElementType& element, std::int64_t block_size, const std::optional<GroupSearch>& search,
                          ColumnBlockSolver solve) {
  const c10::DeviceGuard guard(factor.feedback.device());  // kernels go to the current device
  const HessianFactor factors{factor.order.unsqueeze(0), factor.feedback.unsqueeze(0), factor.pivots.unsqueeze(0)};
  GptqResult whole;
  for (const Stack& stack : cut_into_stacks(weights)) {
    const std::vector<Stack> one{stack};
    GptqResult result = StackSolver(one, factors, element, solve).solve(columns_at_once(block_size), search).front();
    whole.loss += result.loss;
    for (at::Tensor& codes : result.codes) whole.codes.push_back(std::move(codes));
  }
  return whole;
}

std::vector<GptqResult> gptq_together(const std::vector<std::vector<GptqWeight>>& problems,
                                      const HessianFactor& factors, const ElementType& element, std::int64_t block_size,
                                      const std::optional<GroupSearch>& search, ColumnBlockSolver solve) {
  const c10::DeviceGuard guard(factors.feedback.device());
  std::vector<Stack> stacks;
  for (const std::vector<GptqWeight>& weights : problems) {
    stacks.emplace_back();
    for (const GptqWeight& weight : weights) stacks.back().push_back(&weight);
    if (rows_of(stacks.back()) != rows_of(stacks.front()))
      throw InternalError("[kernels.block_solver] problems that are solved together differ in their rows");
  }
  return StackSolver(stacks, factors, element, solve).solve(columns_at_once(block_size), search);
}

bool can_solve_together(const std::vector<StackedRows>& weights, std::int64_t columns, bool searched) {
  const ScaleGrid& grid = weights.front().grid;
  if (searched && columns % grid.block_columns != 0) return false;
  return std::all_of(weights.begin(), weights.end(), [&](const StackedRows& own) {
    return own.grid.block_rows == grid.block_rows && own.rows % grid.block_rows == 0;
  });
}

std::int64_t problems_at_once(std::int64_t rows, std::int64_t columns) {
  return std::max<std::int64_t>(1, kStackElements / std::max<std::int64_t>(1, std::max(rows, columns) * columns));
}

std::uint64_t gptq_by_blocks_workspace(std::int64_t rows, std::int64_t columns) {
  // A stack ends with the weight that fills it, and a single weight may be larger than a stack.
  return gptq_together_workspace(1, std::min(rows, 2 * kStackElements / columns + 1), columns);
}

std::uint64_t gptq_together_workspace(std::int64_t problems, std::int64_t rows, std::int64_t columns) {
  // Residuals and codes, and parts of a weight in another order.
  const std::int64_t per_row = columns * (4 + 1) + (2 * cuda::kMaximumBlock + 64) * 4;
  return static_cast<std::uint64_t>(problems * (rows * per_row + columns * 64) + rows * columns * 4);
}

}  // namespace layerpress::kernels
