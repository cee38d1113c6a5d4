#include <ATen/ATen.h>

#include <algorithm>

#include "layerpress/compression/statistics/gram_statistic.h"
#include "layerpress/modifier/arguments/argument.h"
#include "layerpress/modifier/pruning/pruning.h"
#include "layerpress/modifier/quantizing/factorization.h"

namespace layerpress::modifier {
namespace {

/// SparseGPT's own arguments.
struct SparseGptSettings {
  std::int64_t block_size = 128;
  double dampening = 0.01;
  bool preserves_zeros = false;
};

class SparseGptEdit : public PruningEdit {
 public:
  SparseGptEdit(const kernels::SparsePattern& pattern, const SparseGptSettings& settings)
      : PruningEdit(pattern), settings_(settings) {}

  std::string type() const override { return "SparseGPTModifier"; }
  bool reads_zeros() const override { return settings_.preserves_zeros; }
  std::vector<compression::StatisticPtr> statistics_wanted(const compression::ValueFacts&) const override {
    return {std::make_shared<compression::GramStatistic>()};
  }
  /// Without groups, one threshold is that of all rows; with groups, the products' bits depend on the rows that are multiplied together.
  std::int64_t row_step(const compression::LinearShape&) const override { return 0; }

  compression::CompressionCost cost(const std::vector<compression::LinearShape>& linears) const override {
    compression::CompressionCost cost;
    const std::int64_t columns = linears.front().columns;
    const auto size = static_cast<double>(columns);
    cost.flops["factorize"] = factorize_flops(columns);
    cost.workspace_bytes = kernels::factorize_workspace(columns, linears.front().device);
    const std::uint64_t held = kernels::factor_bytes(columns);
    for (const compression::LinearShape& linear : linears) {
      cost.flops["prune"] += static_cast<double>(linear.rows) * size * size;
      cost.result_bytes += edited_bytes(linear);
      const std::uint64_t working = kernels::sparsify_workspace(linear.rows, columns, options(/*keeps_zeros=*/true));
      cost.workspace_bytes = std::max(cost.workspace_bytes, held + cost.result_bytes + working);
    }
    return cost;
  }

  std::vector<compression::EditedWeight> edit(const std::vector<compression::LinearWeight>& linears,
                                              const compression::Statistics* statistics,
                                              PhaseTimes& times) const override {
    if (statistics == nullptr) throw InternalError("[modifier.sparsegpt] no statistics for {}", linears.front().module);
    const at::Tensor gram = statistics->of<compression::GramStatistic>();
    const Factorization factorization =
        factorize_with_fallbacks(gram, settings_.dampening, {.by_activation = false}, times, "pruned by magnitude");
    // Without a factor, all columns count alike and none is compensated for.
    const bool solved = factorization.factor.has_value();
    const kernels::HessianFactor factor = solved ? *factorization.factor : no_factor(gram);
    const at::Tensor untouched =
        solved ? gram.diagonal().eq(0) : at::zeros({gram.size(0)}, gram.options().dtype(at::kBool));
    std::vector<compression::EditedWeight> results;
    for (const compression::LinearWeight& linear : linears) {
      const auto phase = times.measure("prune");
      const auto columns = static_cast<double>(gram.size(0));
      times.add_flops("prune", static_cast<double>(linear.weight.size(0)) * columns * columns);
      if (settings_.preserves_zeros) require_fewer_zeros(linear);
      kernels::SparseWeight sparse =
          kernels::sparsify(linear.weight, factor, untouched, options(settings_.preserves_zeros || linear.keeps_zeros));
      results.push_back({std::move(sparse.weight), /*keeps_zeros=*/true, {}, factorization.fallback});
      if (solved) results.back().loss = sparse.loss;
    }
    return results;
  }

 private:
  kernels::SparsifyOptions options(bool keeps_zeros) const { return {pattern_, settings_.block_size, keeps_zeros}; }

  static kernels::HessianFactor no_factor(const at::Tensor& gram) {
    const std::int64_t columns = gram.size(0);
    return {at::arange(columns, gram.options().dtype(at::kLong)), at::zeros_like(gram),
            at::ones({columns}, gram.options())};
  }

  /// As LLM Compressor, which takes this for a mistake in the recipe.
  void require_fewer_zeros(const compression::LinearWeight& linear) const {
    const double asked = pattern_.group > 0 ? static_cast<double>(pattern_.pruned) / static_cast<double>(pattern_.group)
                                            : pattern_.sparsity;
    const double found = linear.weight.eq(0).sum().item<double>() / static_cast<double>(linear.weight.numel());
    if (found > asked)
      throw RecipeError(
          "[modifier.sparsegpt] {}: {:.3g} % of its weights are zero already, more than the {:.3g} % that "
          "preserve_sparsity_mask may extend; raise the sparsity, ignore it, or leave preserve_sparsity_mask out",
          linear.module, 100 * found, 100 * asked);
  }

  SparseGptSettings settings_;
};

const std::vector<Argument>& sparsegpt_arguments() {
  static const std::vector<Argument> kArguments =
      joined(PruningModifier::shared_arguments(),
             {{"block_size", "int"}, {"dampening_frac", "float | None"}, {"preserve_sparsity_mask", "bool"}});
  return kArguments;
}

class SparseGptModifier : public PruningModifier {
 public:
  SparseGptModifier(const OrderedJson& arguments, const std::string& where)
      : PruningModifier(arguments, where, sparsegpt_arguments()) {
    const Json plain(arguments);
    settings_.block_size = json_get_or<std::int64_t>(plain, "block_size", where, 128);
    settings_.dampening = json_get_or<double>(plain, "dampening_frac", where, 0.01);
    settings_.preserves_zeros = json_get_or<bool>(plain, "preserve_sparsity_mask", where, false);
    if (settings_.block_size < 1) throw RecipeError("[recipe.modifier] {}: block_size must be positive", where);
    if (group() > 0 && settings_.block_size % group() != 0)
      throw RecipeError("[recipe.modifier] {}: block_size {} is no multiple of the {} weights of mask_structure", where,
                        settings_.block_size, group());
    if (!(settings_.dampening >= 0) || settings_.dampening > 1e6)
      throw RecipeError("[recipe.modifier] {}: dampening_frac must be from 0 to 1e6", where);
  }

  std::string type() const override { return "SparseGPTModifier"; }
  bool moves() const override { return true; }

 protected:
  compression::EditPtr make_edit(const kernels::SparsePattern& pattern) const override {
    return std::make_shared<SparseGptEdit>(pattern, settings_);
  }

 private:
  SparseGptSettings settings_;
};

}  // namespace

/// SparseGPT (arXiv 2301.00774, kernels/solver/sparsify.h). Arguments besides those of pruning.h: block_size 128, dampening_frac 0.01,
/// preserve_sparsity_mask false (weights that are 0 stay 0; a weight with more zeros than the sparsity is an error). Weights that an
/// earlier edit has pruned always stay 0.
///
/// If the Gram matrix cannot be factorized: dampening x10 up to three times, then double precision, then magnitudes without
/// compensation; the report says which. Columns that no token touched become zero.
Kind sparsegpt_modifier() { return {"SparseGPTModifier", make<SparseGptModifier>, sparsegpt_arguments()}; }

}  // namespace layerpress::modifier
