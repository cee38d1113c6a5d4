#include "layerpress/kernels/block_solver.h"

#include <ATen/ATen.h>
#include <c10/core/DeviceGuard.h>

#include <algorithm>

#include "layerpress/kernels/cpu/table.h"

namespace layerpress::kernels {
namespace {

constexpr std::int64_t kStackElements = 1 << 26;

/// Consecutive weights whose rows are solved as one.
using Stack = std::vector<const GptqWeight*>;

/// Blocks of rows that share a scale must not span two weights.
bool ends_with_block(const GptqWeight& weight) { return weight.weight.size(0) % weight.scales.rows_per_group == 0; }

std::vector<Stack> cut_into_stacks(const std::vector<GptqWeight>& weights) {
  std::vector<Stack> stacks;
  std::int64_t elements = 0;
  for (const GptqWeight& weight : weights) {
    if (stacks.empty() || elements + weight.weight.numel() > kStackElements ||
        !ends_with_block(*stacks.back().back())) {
      stacks.emplace_back();
      elements = 0;
    }
    stacks.back().push_back(&weight);
    elements += weight.weight.numel();
  }
  return stacks;
}

/// A tensor of each weight of the stack, one below the other.
template <typename Part>
at::Tensor joined(const Stack& stack, Part&& part) {
  std::vector<at::Tensor> parts;
  for (const GptqWeight* weight : stack) parts.push_back(part(*weight));
  return parts.front().defined() ? at::cat(parts).contiguous() : at::Tensor();
}

class StackSolver {
 public:
  StackSolver(const Stack& stack, const HessianFactor& factor, const Codebook& codebook, ColumnBlockSolver solver)
      : stack_(stack),
        factor_(factor),
        solver_(solver),
        scale_(joined(stack, [](const GptqWeight& weight) { return weight.scales.scale; })),
        zero_point_(joined(stack, [](const GptqWeight& weight) { return weight.scales.zero_point; })),
        group_(factor.order.floor_divide(stack.front()->scales.columns_per_group).to(at::kInt)),
        group_on_host_(group_.cpu()) {
    const cpu::Codebook book = cpu_codebook(codebook);
    codebook_ = {book.fp8, book.minimum, book.maximum};
    std::int64_t rows = 0;
    for (const GptqWeight* weight : stack) rows += weight->weight.size(0);
    residual_ = at::empty({rows, factor.order.size(0)}, factor.feedback.options());
    codes_ = at::empty(residual_.sizes(), residual_.options().dtype(at::kChar));
    loss_ = at::zeros({rows}, residual_.options().dtype(at::kDouble));
    std::int64_t first = 0;
    for (const GptqWeight* weight : stack) {
      at::Tensor own = residual_.narrow(0, first, weight->weight.size(0));
      own.copy_(weight->weight.index_select(1, factor.order));
      first += own.size(0);
    }
  }

  /// Appends the codes of each weight; returns the loss.
  double solve(std::int64_t block_size, const std::optional<GroupSearch>& search, std::vector<at::Tensor>& codes) {
    const std::int64_t columns = residual_.size(1);
    for (std::int64_t begin = 0, end = 0; begin < columns; begin = end) {
      end = search ? end_of_group(begin) : std::min(begin + block_size, columns);
      solve_block(begin, end, search);
    }
    const at::Tensor in_order = codes_.index_select(1, at::argsort(factor_.order));
    std::int64_t first = 0, first_block = 0;
    for (const GptqWeight* weight : stack_) {
      const ColumnScales& scales = weight->scales;
      codes.push_back(in_order.narrow(0, first, weight->weight.size(0)).clone());
      first += weight->weight.size(0);
      if (search) {
        scales.scale.copy_(scale_.narrow(0, first_block, scales.scale.size(0)));
        if (scales.zero_point.defined())
          scales.zero_point.copy_(zero_point_.narrow(0, first_block, scales.scale.size(0)));
      }
      first_block += scales.scale.size(0);
    }
    return loss_.sum().item<double>();
  }

 private:
  std::int64_t end_of_group(std::int64_t begin) const {
    const std::int32_t* group = group_on_host_.const_data_ptr<std::int32_t>();
    std::int64_t end = begin + 1;
    while (end < residual_.size(1) && group[end] == group[begin]) ++end;
    return end;
  }

  void solve_block(std::int64_t begin, std::int64_t end, const std::optional<GroupSearch>& search) {
    const at::Tensor originals = residual_.slice(1, begin, end),
                     feedback = factor_.feedback.slice(0, begin, end).slice(1, begin, end);
    const at::Tensor running = begin == 0 ? originals.contiguous()
                                          : at::addmm(originals, residual_.slice(1, 0, begin),
                                                      factor_.feedback.slice(0, 0, begin).slice(1, begin, end));
    cuda::ColumnBlockTask task;
    task.rows = residual_.size(0);
    task.columns = static_cast<std::int32_t>(end - begin);
    task.running = running.const_data_ptr<float>();
    task.residual = residual_.data_ptr<float>() + begin;
    task.residual_stride = residual_.stride(0);
    task.codes = codes_.data_ptr<std::int8_t>() + begin;
    task.codes_stride = codes_.stride(0);
    task.feedback = feedback.const_data_ptr<float>();
    task.feedback_stride = feedback.stride(0);
    task.pivots = factor_.pivots.const_data_ptr<float>() + begin;
    task.scales = scale_.data_ptr<float>();
    if (zero_point_.defined()) task.zero_points = zero_point_.data_ptr<float>();
    task.groups = scale_.size(1);
    task.rows_per_group = stack_.front()->scales.rows_per_group;
    task.group_of_column = group_.const_data_ptr<std::int32_t>() + begin;
    task.codebook = codebook_;
    task.loss = loss_.data_ptr<double>();
    const ChosenScales candidates = search ? candidates_of(running, *search) : ChosenScales();
    if (search) {
      task.candidates = static_cast<std::int32_t>(search->shrink.size());
      task.candidate_scales = candidates.scale.const_data_ptr<float>();
      if (candidates.zero_point.defined()) task.candidate_zero_points = candidates.zero_point.const_data_ptr<float>();
    }
    solver_(task);
  }

  /// Of each row's range, [candidates, rows].
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

  const Stack& stack_;
  const HessianFactor& factor_;
  ColumnBlockSolver solver_;
  cuda::Codebook codebook_;
  at::Tensor scale_, zero_point_;
  at::Tensor group_, group_on_host_;  // int32 [K], group of each column in the order of quantization
  at::Tensor residual_, codes_;       // [rows, K] in that order
  at::Tensor loss_;                   // fp64 [rows]
};

}  // namespace

GptqResult gptq_by_blocks(const std::vector<GptqWeight>& weights, const HessianFactor& factor, const Codebook& codebook,
                          std::int64_t block_size, const std::optional<GroupSearch>& search, ColumnBlockSolver solve) {
  const c10::DeviceGuard guard(factor.feedback.device());  // kernels go to the current device
  const std::int64_t columns = std::clamp<std::int64_t>(block_size, 1, cuda::kMaximumBlock);
  GptqResult result;
  for (const Stack& stack : cut_into_stacks(weights))
    result.loss += StackSolver(stack, factor, codebook, solve).solve(columns, search, result.codes);
  return result;
}

std::uint64_t gptq_by_blocks_workspace(std::int64_t rows, std::int64_t columns) {
  // A stack ends with the weight that fills it, and one weight may be larger; so much of a weight is copied in another order.
  const std::int64_t stack = std::min(rows, 2 * kStackElements / columns + 1);
  const std::int64_t per_row = columns * (4 + 1 + 1 + 4) + (2 * cuda::kMaximumBlock + 64) * 4;
  return static_cast<std::uint64_t>(stack * per_row + columns * 64);
}

}  // namespace layerpress::kernels
