#include <ATen/ATen.h>

#include <algorithm>

#include "layerpress/compression/statistics/square_sum.h"
#include "layerpress/modifier/arguments/argument.h"
#include "layerpress/modifier/pruning/pruning.h"
#include "layerpress/modifier/quantizing/factorization.h"

namespace layerpress::modifier {
namespace {

constexpr std::int64_t kElementsAtOnce = 1 << 18;  // fit into a core's cache

class WandaEdit : public PruningEdit {
 public:
  using PruningEdit::PruningEdit;

  std::string type() const override { return "WandaPruningModifier"; }
  std::vector<compression::StatisticPtr> statistics_wanted(const compression::ValueFacts&) const override {
    return {std::make_shared<compression::SquareSum>()};
  }
  std::int64_t row_step(const compression::LinearShape&) const override { return 1; }

  compression::CompressionCost cost(const std::vector<compression::LinearShape>& linears) const override {
    compression::CompressionCost cost;
    for (const compression::LinearShape& linear : linears) {
      const std::int64_t rows = std::min(linear.rows, rows_at_once(linear.columns));
      cost.flops["prune"] += static_cast<double>(linear.rows) * static_cast<double>(linear.columns);
      cost.result_bytes += edited_bytes(linear);
      const auto working = static_cast<std::uint64_t>(rows * linear.columns) *
                           (c10::elementSize(linear.dtype) + sizeof(float) + sizeof(bool));
      cost.workspace_bytes = std::max(cost.workspace_bytes, cost.result_bytes + working);
    }
    return cost;
  }

  std::vector<compression::EditedWeight> edit(const std::vector<compression::LinearWeight>& linears,
                                              const compression::Statistics* statistics,
                                              PhaseTimes& times) const override {
    if (statistics == nullptr) throw InternalError("[modifier.wanda] no statistics for {}", linears.front().module);
    const at::Tensor squares = statistics->of<compression::SquareSum>();
    const std::string useless = useless_inputs(squares.sum(at::kDouble).item<double>());
    const at::Tensor norms = useless.empty() ? squares.sqrt() : at::ones_like(squares);
    std::vector<compression::EditedWeight> results;
    for (const compression::LinearWeight& linear : linears) {
      const auto phase = times.measure("prune");
      times.add_flops("prune", static_cast<double>(linear.weight.numel()));
      results.push_back({pruned(linear, norms),
                         /*keeps_zeros=*/true,
                         {},
                         useless.empty() ? "" : "pruned by magnitude (" + useless + ")"});
    }
    return results;
  }

 private:
  static std::int64_t rows_at_once(std::int64_t columns) {
    return std::max<std::int64_t>(1, kElementsAtOnce / columns);
  }

  at::Tensor pruned(const compression::LinearWeight& linear, const at::Tensor& norms) const {
    at::Tensor result = linear.weight.clone(at::MemoryFormat::Contiguous);
    const std::int64_t step = rows_at_once(result.size(1));
    for (std::int64_t first = 0; first < result.size(0); first += step) {
      at::Tensor rows = result.narrow(0, first, std::min(step, result.size(0) - first));
      // Weights that must stay zero have the least score already.
      rows.masked_fill_(kernels::least_scores(rows.abs().to(at::kFloat).mul_(norms), pattern_), 0);
    }
    return result;
  }
};

class WandaPruningModifier : public PruningModifier {
 public:
  WandaPruningModifier(const OrderedJson& arguments, const std::string& where)
      : PruningModifier(arguments, where, shared_arguments()) {}
  std::string type() const override { return "WandaPruningModifier"; }

 protected:
  compression::EditPtr make_edit(const kernels::SparsePattern& pattern) const override {
    return std::make_shared<WandaEdit>(pattern);
  }
};

}  // namespace

/// Wanda (arXiv 2306.11695): in each row, or in each group of it, the weights with the smallest |w| ‖x‖ become zero, where ‖x‖ is the
/// norm of the weight's input channel over the calibration set. The others stay as they are. Arguments: pruning.h. Inputs that no
/// token has, or that are not finite, leave the magnitudes alone; the report says so.
Kind wanda_modifier() {
  return {"WandaPruningModifier", make<WandaPruningModifier>, PruningModifier::shared_arguments()};
}

}  // namespace layerpress::modifier
