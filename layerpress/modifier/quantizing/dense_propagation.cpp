#include <ATen/ATen.h>

#include <algorithm>

#include "layerpress/compression/statistics/gram_statistic.h"
#include "layerpress/modifier/arguments/argument.h"
#include "layerpress/modifier/arguments/targeted_edit.h"
#include "layerpress/modifier/quantizing/propagation.h"

namespace layerpress::modifier {
namespace {

// Damping in multiples of columns per token: fewer tokens know less of the columns (docs/quality.md).
constexpr double kDampingOfTokens = 3;

// Rows that are moved in fp32 before they are rounded to the weight's dtype.
constexpr std::int64_t kRowsAtOnce = 1152;

const std::vector<Argument>& propagation_arguments() {
  static const std::vector<Argument> kArguments = {{"targets", "str | list[str]"}, {"ignore", "str | list[str]"},
                                                   {"strength", "float"},          {"damping", "float"},
                                                   {"residual", "float"},          {"unties", "bool"}};
  return kArguments;
}

class DensePropagationEdit : public compression::Edit {
 public:
  /// Without `damping`, that of the options is chosen by the number of tokens.
  DensePropagationEdit(const kernels::ErrorPropagation& options, bool has_damping)
      : options_(options), has_damping_(has_damping) {}

  std::string type() const override { return "ErrorPropagationModifier"; }
  std::string describe() const override { return "moved"; }
  bool wants_original() const override { return true; }
  std::vector<compression::StatisticPtr> statistics_wanted(const compression::ValueFacts& facts) const override {
    std::vector<compression::StatisticPtr> wanted = {std::make_shared<compression::GramStatistic>()};
    if (facts.differs) wanted.push_back(difference_wanted(facts, options_));
    return wanted;
  }
  std::int64_t row_step(const compression::LinearShape&) const override { return 1; }

  compression::CompressionCost cost(const std::vector<compression::LinearShape>& linears) const override {
    compression::CompressionCost cost;
    const std::int64_t columns = linears.front().columns;
    const std::uint64_t held = add_propagation_cost(linears, cost);
    std::int64_t most = 0;
    for (const compression::LinearShape& linear : linears) {
      cost.result_bytes += edited_bytes(linear);
      most = std::max(most, std::min(linear.rows, kRowsAtOnce));
    }
    const std::uint64_t moving =
        kernels::moving_workspace(columns) + sizeof(float) * static_cast<std::uint64_t>(most * columns);
    cost.workspace_bytes = std::max(cost.workspace_bytes, held + cost.result_bytes + moving);
    return cost;
  }

  std::vector<compression::EditedWeight> edit(const std::vector<compression::LinearWeight>& linears,
                                              const compression::Statistics* statistics,
                                              PhaseTimes& times) const override {
    if (statistics == nullptr)
      throw InternalError("[modifier.error_propagation] no statistics for {}", linears.front().module);
    const Propagation propagation(linears, *statistics, options_for(*statistics, linears.front()), times);
    std::string fallback = propagation.fallback();
    if (!propagation.moves() && fallback.empty()) fallback = "not moved (nothing was compressed before it)";
    std::vector<compression::EditedWeight> results;
    for (const compression::LinearWeight& linear : linears)
      results.push_back(
          {.weight = moved(linear, propagation, times), .keeps_zeros = linear.keeps_zeros, .fallback = fallback});
    return results;
  }

 private:
  kernels::ErrorPropagation options_for(const compression::Statistics& statistics,
                                        const compression::LinearWeight& linear) const {
    kernels::ErrorPropagation options = options_;
    if (!has_damping_ && statistics.tokens > 0)
      options.damping =
          kDampingOfTokens * static_cast<double>(linear.weight.size(1)) / static_cast<double>(statistics.tokens);
    return options;
  }

  static at::Tensor moved(const compression::LinearWeight& linear, const Propagation& propagation, PhaseTimes& times) {
    at::Tensor result = at::empty_like(linear.weight, at::MemoryFormat::Contiguous);
    for (std::int64_t first = 0; first < result.size(0); first += kRowsAtOnce) {
      const std::int64_t count = std::min(kRowsAtOnce, result.size(0) - first);
      const at::Tensor rows = linear.weight.narrow(0, first, count);
      at::Tensor target = result.narrow(0, first, count);
      target.copy_(propagation.moved(rows, linear.first_row + first, times));
      if (linear.keeps_zeros) target.masked_fill_(rows.eq(0), 0);
    }
    return result;
  }

  kernels::ErrorPropagation options_;
  bool has_damping_;
};

class ErrorPropagationModifier : public TargetedEdit {
 public:
  ErrorPropagationModifier(const OrderedJson& arguments, const std::string& where)
      : TargetedEdit(arguments, where, propagation_arguments(), "lm_head") {
    Json options = {{"strength", 1}};
    for (const char* key : {"strength", "damping", "residual"})
      if (plain_.contains(key)) options[key] = plain_[key];
    edit_ = std::make_shared<DensePropagationEdit>(error_propagation_of(options, where), options.contains("damping"));
    unties_ = json_get_or<bool>(plain_, "unties", where, true);
  }

  std::map<std::string, compression::EditPtr> edits_of(
      const std::vector<compression::ModelModule>& modules) const override {
    std::map<std::string, compression::EditPtr> edits = TargetedEdit::edits_of(modules);
    for (const compression::ModelModule& module : modules)
      if (module.is_tied && !unties_) edits.erase(module.name.name);
    return edits;
  }

  bool needs_data() const override { return true; }
  bool prunes() const override { return false; }
  bool moves() const override { return true; }
  bool may_edit_nothing() const override { return !unties_; }

 private:
  bool unties_ = true;
};

}  // namespace

/// ErrorPropagationModifier: moves linears towards the original model's outputs as `best` does (kernels/solver/error_propagation.h), but leaves
/// them dense, so that they make up for what was compressed before them. Arguments: targets (["lm_head"]), ignore ([]), strength (1; 0 to
/// 2), damping (at least 0; 3 columns / tokens) and residual (0.4; 0 to 2). Linears whose encoding moves weights itself are left to it.
/// A head that shares the embedding's weight gets one of its own, or, with unties (true) false, stays as it is.
Kind error_propagation_modifier() {
  return {"ErrorPropagationModifier", make<ErrorPropagationModifier>, propagation_arguments()};
}

}  // namespace layerpress::modifier
