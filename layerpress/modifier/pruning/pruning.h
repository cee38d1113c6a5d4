#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "layerpress/compression/edit.h"
#include "layerpress/kernels/solver/sparsify.h"
#include "layerpress/modifier/arguments/targeted_edit.h"
#include "layerpress/quant/targets/matching.h"

namespace layerpress::modifier {

/// Arguments of modifiers that prune.
inline constexpr const char* kSparsityProfile = "sparsity_profile";
inline constexpr const char* kLayerSparsities = "layer_sparsities";

/// A sparsity for each layer by its outliers (OWL, Yin et al. 2024, arXiv 2310.05175): products |w| ‖x‖ of weights and the norms of their input
/// channels that are greater than `factor` times the layer's mean.
struct OutlierProfile {
  double sparsity = 0;  ///< the mean over layers
  double factor = 0;    ///< owl_m
  double spread = 0;    ///< owl_lmbda: the sparsest and the densest layer are twice this apart
};

/// Nothing: the arguments ask for none. Throws RecipeError naming `where` and the argument.
std::optional<OutlierProfile> outlier_profile(const Json& arguments, const std::string& where);

/// The sparsities of layers with these shares of outliers, six decimals each: the more outliers, the fewer zeros. Throws RecipeError if one is
/// not from 0 to below 1.
std::vector<double> sparsities_of(const OutlierProfile& profile, const std::vector<double>& shares,
                                  const std::string& where);

/// What modifiers share that prune by the inputs of weights, with LLM Compressor's arguments and defaults: sparsity (a number, or one for each module
/// that is a target), mask_structure ("0:0": anywhere; "n:m": n of m consecutive weights of a row become zero, whatever the sparsity),
/// targets (["Linear"]; a module around linears means all of them), ignore ([]), sparsity_profile ("owl", with owl_m and owl_lmbda). What
/// the profile gives stands in layer_sparsities; until then all layers have `sparsity`. Parsing throws RecipeError naming `where` and the argument.
class PruningModifier : public compression::EditingModifier {
 public:
  bool needs_data() const override { return true; }
  std::map<std::string, compression::EditPtr> edits_of(
      const std::vector<compression::ModelModule>& modules) const override;
  std::vector<ListEntry> unmatched_entries() const override { return unmatched_in(*targets_, ignore_); }

  /// The arguments of every modifier that prunes.
  static const std::vector<Argument>& shared_arguments();

 protected:
  /// `known`: all arguments that the derived class takes.
  PruningModifier(const OrderedJson& arguments, const std::string& where, const std::vector<Argument>& known);

  /// The edit that makes weights sparse.
  virtual compression::EditPtr make_edit(const kernels::SparsePattern& pattern) const = 0;

  const std::string& where() const { return where_; }
  std::int64_t group() const { return group_; }

 private:
  void read_sparsity(const Json& arguments);
  void read_profile(const Json& arguments);
  /// Throws RecipeError for layer_sparsities of what is no module.
  void check_layers(const std::vector<compression::ModelModule>& modules) const;
  /// The layer's, or `otherwise` for a module in none.
  double sparsity_of(const std::string& module, double otherwise) const;
  void read_structure(const Json& arguments);

  std::string where_;
  std::vector<double> sparsities_;
  bool one_for_all_ = true;
  std::map<std::string, double> layer_sparsities_;
  std::int64_t pruned_ = 0, group_ = 0;
  std::optional<quant::TargetList> targets_, ignore_;
};

/// An edit that makes weights sparse.
class PruningEdit : public compression::Edit {
 public:
  explicit PruningEdit(const kernels::SparsePattern& pattern) : pattern_(pattern) {}

  std::string describe() const override;  ///< "50 % sparse" or "2:4 sparse"
  kernels::SparsePattern pattern() const override { return pattern_; }

 protected:
  const kernels::SparsePattern pattern_;
};

}  // namespace layerpress::modifier
