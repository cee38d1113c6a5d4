#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "layerpress/base/json.h"
#include "layerpress/compression/modifier.h"
#include "layerpress/modifier/arguments/argument.h"
#include "layerpress/rewrite/kept_experts.h"

namespace layerpress::modifier {

/// The experts of a layer that stay: all but `dropped` of each of `groups` equal runs of experts, namely those with the smallest
/// saliency (of equal ones, those with the greatest number). Ascending.
std::vector<std::int64_t> kept_experts(const std::vector<double>& saliency, std::int64_t groups, std::int64_t dropped);

/// The same over layers: all but `dropped` of all experts stay, namely those with the smallest saliency relative to the greatest one of
/// their layer; of equal ones those with the greatest number, then the last layers'. `least` stay in each layer. REQUIRES: enough.
std::vector<std::vector<std::int64_t>> kept_over_layers(const std::vector<std::vector<double>>& saliency,
                                                        std::int64_t dropped, std::int64_t least);

/// What an expert contributes, over all calibration tokens.
struct ExpertFigures {
  double sum = 0;  ///< of g * ||f||
  std::int64_t tokens = 0;
  /// Router-weighted activation: the mean over the expert's tokens; 0 without any.
  double saliency() const { return tokens == 0 ? 0 : sum / static_cast<double>(tokens); }
};

/// Removes the experts that contribute least to their layer's output (REAP, Lasby et al. 2025, arXiv 2510.13999). Which ones follows
/// from figures of a run that measures them; until then it keeps the first ones, which is enough to plan.
class ExpertPruning final : public compression::Modifier, public rewrite::Rewrite {
 public:
  static constexpr const char* kType = "REAPPruningModifier";

  /// Throws RecipeError.
  ExpertPruning(const Json& arguments, const std::string& where);

  std::string type() const override;
  std::vector<ListEntry> unmatched_entries() const override;
  /// Until the experts are chosen.
  bool needs_data() const override { return !is_decided(); }
  rewrite::Changes changes(const rewrite::Model& model) const override;

  bool is_decided() const { return !kept_.empty(); }
  /// Whether every layer keeps equally many.
  bool is_uniform() const { return uniform_; }
  /// The file for the kept experts; "": none.
  const std::string& report_path() const { return report_path_; }
  /// The experts of a layer with these figures that stay. REQUIRES: is_uniform(). Throws RecipeError.
  std::vector<std::int64_t> choose(const rewrite::ExpertMixture& mixture,
                                   const std::vector<ExpertFigures>& figures) const;
  /// Those of all layers. REQUIRES: !is_uniform(). Throws RecipeError.
  rewrite::KeptExperts choose_over_layers(const rewrite::ExpertMixture& mixture,
                                          const std::vector<std::vector<ExpertFigures>>& figures) const;
  /// The first experts of each layer, as many as will stay; if their numbers may differ, as many as can stay in the last layer, so that no
  /// choice needs more memory. Throws RecipeError for a model whose experts cannot be removed so.
  rewrite::KeptExperts first_experts(const rewrite::ExpertMixture& mixture) const;
  /// The mixture of the model, whose experts can be removed as the arguments ask. Throws RecipeError.
  rewrite::ExpertMixture mixture_of(const rewrite::Model& model) const;
  /// As if these experts were chosen.
  rewrite::Changes changes(const rewrite::Model& model, const rewrite::KeptExperts& kept) const;
  /// {layer: [numbers]}, in the order of numbers in layers' names.
  static OrderedJson report(const rewrite::KeptExperts& kept);
  const rewrite::KeptExperts& kept() const { return kept_; }

 private:
  /// Groups of experts and how many of each are dropped.
  struct Share {
    std::int64_t groups = 1, dropped = 0;
  };
  Share share_of(const rewrite::ExpertMixture& mixture) const;
  /// How many experts of all layers are dropped if the layers' shares may differ.
  std::int64_t dropped_of_all(const rewrite::ExpertMixture& mixture) const;
  std::vector<double> saliencies(const std::vector<ExpertFigures>& figures) const;
  void check_share(const rewrite::KeptExperts& kept, const rewrite::ExpertMixture& mixture) const;
  void check_ignore(const rewrite::ExpertMixture& mixture) const;
  void read_decision(const Json& arguments);
  void check(const rewrite::KeptExperts& kept, const rewrite::ExpertMixture& mixture) const;

  std::string where_;
  double sparsity_ = 0;
  bool uniform_ = true;
  std::vector<std::string> ignore_;
  std::string report_path_;
  rewrite::KeptExperts kept_;
};

Kind reap_modifier();

}  // namespace layerpress::modifier
