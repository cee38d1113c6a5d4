#pragma once

#include <algorithm>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "layerpress/kernels/solver/coordinate_descent.h"
#include "layerpress/kernels/solver/factorize_together.h"
#include "layerpress/kernels/solver/gptq.h"
#include "layerpress/modifier/quantizing/factorization.h"
#include "layerpress/modifier/quantizing/gptq.h"
#include "layerpress/modifier/quantizing/propagation.h"
#include "layerpress/modifier/quantizing/quantizing_modifier.h"
#include "layerpress/quant/rounding/row_transfer.h"
#include "layerpress/quant/weight_numbers.h"

namespace layerpress::modifier {

inline std::int64_t columns_of(const compression::LinearWeight& linear) { return linear.weight.size(1); }
inline std::int64_t columns_of(const compression::LinearShape& linear) { return linear.columns; }

/// Implements make_gptq_modifier() and make_autoround_modifier(); its parts are in gptq.cpp, gptq_together.cpp and gptq_cost.cpp.
class GptqModifier : public QuantizingModifier {
 public:
  GptqModifier(const OrderedJson& arguments, const std::string& where, BlockSolverOf block_solver,
               quant::Observer default_observer = quant::Observer::kHessian);

  std::string type() const override { return "GPTQModifier"; }
  bool needs_data() const override { return true; }
  std::vector<compression::StatisticPtr> statistics_wanted(const compression::ValueFacts& facts) const override;
  bool wants_original() const override { return propagation_.has_value(); }
  compression::EditPtr first_edit() const override { return propagation_ ? propagation_edit(*propagation_) : nullptr; }
  bool rounds_inputs() const override { return rounded_inputs_; }

  compression::CompressionCost cost(const std::vector<compression::LinearShape>& linears) const override;

  std::vector<compression::CompressedModule> compress(const std::vector<compression::LinearWeight>& linears,
                                                      const compression::Statistics* statistics,
                                                      PhaseTimes& times) const override;

  std::size_t tasks_at_once(const std::vector<compression::LinearShape>& linears) const override;

  std::uint64_t workspace_together(const std::vector<compression::LinearShape>& linears,
                                   std::size_t tasks) const override;

  std::vector<std::vector<compression::CompressedModule>> compress_together(
      const std::vector<compression::CompressionTask>& tasks, PhaseTimes& times) const override;

 private:
  /// State shared by all stacks; the factorization is that of the current stacks.
  struct Solution {
    const compression::Statistics& statistics;
    Propagation propagation;
    Factorization factorization;
  };

  /// Indices of linears with one scheme, whose rows are solved as one stack.
  using Stack = std::vector<std::size_t>;

  /// How scales are chosen during the solve, if they are.
  std::optional<kernels::GroupSearch> group_search(const quant::QuantizationScheme& scheme,
                                                   const kernels::ScaleFormat& stored, std::int64_t columns) const {
    return quant::group_search(*scheme.weights, observer_for(&scheme), stored, columns);
  }

  ColumnOrder column_order(const quant::QuantizationScheme& scheme, std::int64_t columns) const {
    const quant::QuantizationArgs& args = *scheme.weights;
    const bool by_activation = args.actorder && (*args.actorder == "static" || *args.actorder == "weight");
    if (!by_activation || !group_search(scheme, kernels::ScaleFormat(), columns)) return {by_activation, 0};
    return {by_activation, quant::scale_grid(args, 1, columns).block_columns};
  }

  /// Stacks in the order of the linears, grouped by the order of their columns. Stacks of one order share one
  /// factorization, and only one factorization is in memory.
  template <typename Linear>
  std::map<ColumnOrder, std::vector<Stack>> stacks_of(const std::vector<Linear>& linears) const {
    std::map<ColumnOrder, std::vector<Stack>> result;
    for (std::size_t i = 0; i < linears.size(); ++i) {
      std::vector<Stack>& stacks = result[column_order(*linears[i].scheme, columns_of(linears[i]))];
      const auto same = [&](const Stack& stack) { return linears[stack.front()].scheme == linears[i].scheme; };
      auto found = std::find_if(stacks.begin(), stacks.end(), same);
      if (found == stacks.end()) found = stacks.insert(found, Stack());
      found->push_back(i);
    }
    return result;
  }

  /// The number of rows whose weights are moved at once: their fp32 copies take 64 MiB, or they are few.
  static std::int64_t rows_moved_at_once(std::int64_t columns) {
    constexpr std::int64_t kElements = 1 << 24, kFewest = 256;
    return std::max(kFewest, kElements / std::max<std::int64_t>(1, columns));
  }

  /// Members of a stack that are compressed at once: all of them, or, if weights are moved, only some, because moved
  /// weights are fp32 copies.
  template <typename Linear>
  static std::vector<Stack> batches_of(const std::vector<Linear>& linears, const Stack& stack, bool moves) {
    if (!moves) return {stack};
    const std::int64_t most = rows_moved_at_once(columns_of(linears[stack.front()]));
    std::vector<Stack> batches;
    std::int64_t rows = 0;
    for (const std::size_t i : stack) {
      if (batches.empty() || rows + rows_of(linears[i]) > most) {
        batches.emplace_back();
        rows = 0;
      }
      batches.back().push_back(i);
      rows += rows_of(linears[i]);
    }
    return batches;
  }

  /// Whether weights are moved; first_edit() has moved those that edits have pruned.
  template <typename Linear>
  bool moves(const std::vector<Linear>& linears) const {
    return propagation_ && !linears.front().keeps_zeros;
  }

  void compress_stack(const std::vector<compression::LinearWeight>& linears, const Stack& stack,
                      const Solution& solution, PhaseTimes& times,
                      std::vector<compression::CompressedModule>& results) const;

  /// Moves and compresses members of a stack; returns their loss.
  double compress_batch(const std::vector<compression::LinearWeight>& linears, const Stack& batch,
                        const Solution& solution, PhaseTimes& times,
                        std::vector<compression::CompressedModule>& results) const;

  static void require_statistics(const std::vector<compression::LinearWeight>& linears,
                                 const compression::Statistics* statistics);

  /// Uninitialized scales of a linear, for those chosen during the solve.
  static kernels::ChosenScales scales_to_choose(const compression::LinearWeight& linear);

  /// Solves the stacked rows of all members at once. Returns the codes of each; writes searched scales and the loss of
  /// all rows.
  std::vector<at::Tensor> solve(const std::vector<compression::LinearWeight>& members,
                                const std::vector<kernels::ChosenScales>& scales, const kernels::HessianFactor& factor,
                                const std::optional<kernels::GroupSearch>& search,
                                const compression::Statistics& statistics, double& loss, PhaseTimes& times) const;

  /// Whether codes are improved after the solve: integers, whose weights keep no zeros, on the CPU.
  template <typename Linear>
  bool descends(const Linear& linear) const {
    const quant::QuantizationArgs& args = *linear.scheme->weights;
    return descent_ && args.type == quant::NumberType::kInt && !linear.keeps_zeros &&
           quant::rows_per_scale(args) == 1 && is_on_cpu(linear);
  }
  static bool is_on_cpu(const compression::LinearWeight& linear) { return linear.weight.device().is_cpu(); }
  static bool is_on_cpu(const compression::LinearShape& linear) { return linear.device.is_cpu(); }

  static std::vector<kernels::GptqWeight> problem_of(const std::vector<compression::LinearWeight>& linears,
                                                     const std::vector<kernels::ChosenScales>& scales);

  static void add_solve_flops(const std::vector<compression::LinearWeight>& linears,
                              const std::optional<kernels::GroupSearch>& search, PhaseTimes& times);

  /// Results of tasks whose Gram matrices can be factorized together; the results of other tasks are empty.
  std::vector<std::vector<compression::CompressedModule>> solve_together(
      const std::vector<compression::CompressionTask>& tasks, PhaseTimes& times) const;

  /// Factorizes for all tasks at once. A task whose inputs contain no information counts as not definite.
  kernels::HessianFactors factorize(const std::vector<compression::CompressionTask>& tasks, const ColumnOrder& order,
                                    PhaseTimes& times) const;

  /// Each element receives feedback from half of all columns and, per candidate for its scale, from half of its
  /// group's.
  static double solve_flops(double elements, double columns, std::int64_t group_columns,
                            const std::optional<kernels::GroupSearch>& search);

  /// Adds the cost of compress_stack, while `held` bytes of factors are in memory, to that of earlier stacks.
  void add_stack_cost(const std::vector<compression::LinearShape>& linears, const Stack& stack, std::uint64_t held,
                      compression::CompressionCost& cost) const;

  void add_batch_cost(const std::vector<compression::LinearShape>& linears, const Stack& batch, std::uint64_t held,
                      compression::CompressionCost& cost) const;

  BlockSolverOf block_solver_;
  std::int64_t block_size_ = 128;
  double dampening_ = 0.01;
  std::optional<kernels::ErrorPropagation> propagation_;
  std::optional<kernels::CoordinateDescent> descent_;
  bool rounded_inputs_ = false;
};

}  // namespace layerpress::modifier
