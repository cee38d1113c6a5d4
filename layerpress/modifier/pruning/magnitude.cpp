#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>

#include "layerpress/modifier/arguments/argument.h"
#include "layerpress/modifier/pruning/pruning.h"

namespace layerpress::modifier {
namespace {

const std::vector<Argument> kMagnitudeArguments = {{"targets", "str | list[str]"},
                                                   {"init_sparsity", "float"},
                                                   {"final_sparsity", "float"},
                                                   {"update_scheduler", "str"},
                                                   {"scheduler_args", "dict[str, Any]"},
                                                   {"mask_structure", "str"},
                                                   {"leave_enabled", "bool"},
                                                   {"apply_globally", "bool"}};

const std::vector<Argument> kConstantPruningArguments = {{"targets", "str | list[str]"}};

/// An edit that looks at the magnitudes of a weight only.
class MagnitudeEdit : public compression::Edit {
 public:
  std::vector<compression::StatisticPtr> statistics_wanted(const compression::ValueFacts&) const override { return {}; }

  compression::CompressionCost cost(const std::vector<compression::LinearShape>& linears) const override {
    compression::CompressionCost cost;
    for (const compression::LinearShape& linear : linears) {
      const auto elements = static_cast<std::uint64_t>(linear.rows * linear.columns);
      cost.flops["prune"] += static_cast<double>(elements);
      const std::uint64_t threshold = cost.result_bytes + elements * threshold_bytes();
      cost.result_bytes += edited_bytes(linear);
      const std::uint64_t masking = cost.result_bytes + elements * (sizeof(float) + sizeof(bool));
      cost.workspace_bytes = std::max({cost.workspace_bytes, threshold, masking});
    }
    return cost;
  }

  std::vector<compression::EditedWeight> edit(const std::vector<compression::LinearWeight>& linears,
                                              const compression::Statistics*, PhaseTimes& times) const override {
    std::vector<compression::EditedWeight> results;
    for (const compression::LinearWeight& linear : linears) {
      const auto phase = times.measure("prune");
      times.add_flops("prune", static_cast<double>(linear.weight.numel()));
      const at::Tensor magnitudes = linear.weight.abs().to(at::kFloat);
      results.push_back({linear.weight.masked_fill(magnitudes.le(threshold(magnitudes)), 0), /*keeps_zeros=*/true});
    }
    return results;
  }

 protected:
  /// The greatest magnitude that becomes zero.
  virtual at::Tensor threshold(const at::Tensor& magnitudes) const = 0;
  /// Bytes for each element while it is found.
  virtual std::uint64_t threshold_bytes() const { return sizeof(float); }
};

class PruningByMagnitude : public MagnitudeEdit {
 public:
  explicit PruningByMagnitude(double sparsity) : sparsity_(sparsity) {}

  std::string type() const override { return "MagnitudePruningModifier"; }
  std::string describe() const override { return fmt::format("{:.6g} % sparse", 100 * sparsity_); }
  std::int64_t row_step(const compression::LinearShape&) const override { return 0; }  // one threshold for all rows

 protected:
  at::Tensor threshold(const at::Tensor& magnitudes) const override {
    const auto pruned = static_cast<std::int64_t>(sparsity_ * static_cast<double>(magnitudes.numel()));
    if (pruned == 0) return at::full({}, -1, magnitudes.options());
    return std::get<0>(magnitudes.view({-1}).kthvalue(pruned));
  }
  std::uint64_t threshold_bytes() const override {
    return 2 * sizeof(float) + sizeof(std::int64_t);  // kthvalue partitions a copy with places
  }

 private:
  double sparsity_;
};

class ConstantZeros : public MagnitudeEdit {
 public:
  std::string type() const override { return "ConstantPruningModifier"; }
  std::string describe() const override { return "zeros kept"; }
  bool reads_zeros() const override { return true; }
  std::int64_t row_step(const compression::LinearShape&) const override { return 1; }

 protected:
  at::Tensor threshold(const at::Tensor& magnitudes) const override { return at::full({}, 1e-8, magnitudes.options()); }
};

class MagnitudePruningModifier : public TargetedEdit {
 public:
  bool needs_data() const override { return false; }
  MagnitudePruningModifier(const OrderedJson& arguments, const std::string& where)
      : TargetedEdit(arguments, where, kMagnitudeArguments) {
    if (json_get_or<bool>(plain_, "apply_globally", where, false))
      throw RecipeError(
          "[recipe.modifier] {}: apply_globally is not implemented: each weight is pruned by itself; leave it out",
          where);
    if (const auto structure = json_get_or<std::string>(plain_, "mask_structure", where, "unstructured");
        structure != "unstructured")
      throw RecipeError(
          "[recipe.modifier] {}: mask_structure '{}' is not implemented; write unstructured, or use "
          "WandaPruningModifier, which prunes n:m",
          where, structure);
    edit_ = std::make_shared<PruningByMagnitude>(sparsity(where));
    for (const char* key : {"init_sparsity", "update_scheduler", "scheduler_args", "leave_enabled"})
      if (json_has(plain_, key)) without_effect_.emplace_back(key);
  }

 private:
  double sparsity(const std::string& where) const {
    const auto found = plain_.find("final_sparsity");
    const double share = found != plain_.end() && found->is_number() ? found->get<double>() : -1;
    if (share > 0 && share < 1) return share;
    throw RecipeError("[recipe.modifier] {}: final_sparsity must be a number between 0 and 1, such as 0.5", where);
  }
};

class ConstantPruningModifier : public TargetedEdit {
 public:
  bool needs_data() const override { return false; }
  ConstantPruningModifier(const OrderedJson& arguments, const std::string& where)
      : TargetedEdit(arguments, where, kConstantPruningArguments) {
    edit_ = std::make_shared<ConstantZeros>();
  }
};

}  // namespace

/// MagnitudePruningModifier: of each weight matrix, the ⌊N K final_sparsity⌋ elements with the smallest |w| become zero, and those equal
/// to the last one. It needs no data. Arguments as LLM Compressor's, which prunes step by step while a model is trained: targets
/// and final_sparsity are required; init_sparsity, update_scheduler, scheduler_args and leave_enabled have no effect in one shot;
/// mask_structure other than "unstructured" and apply_globally are refused.
Kind magnitude_pruning_modifier() {
  return {"MagnitudePruningModifier", make<MagnitudePruningModifier>, kMagnitudeArguments};
}

/// ConstantPruningModifier: elements that are zero (|w| <= 1e-8) stay zero, whatever later entries of the recipe do with the weights of
/// its targets. Arguments: targets, required. It needs no data.
Kind constant_pruning_modifier() {
  return {"ConstantPruningModifier", make<ConstantPruningModifier>, kConstantPruningArguments};
}

}  // namespace layerpress::modifier
