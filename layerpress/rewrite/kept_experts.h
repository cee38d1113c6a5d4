#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "layerpress/rewrite/rewrite.h"

namespace layerpress::rewrite {

/// The numbers of the experts that stay, ascending, by the module around router and experts (graph::ExpertLayer::name).
using KeptExperts = std::map<std::string, std::vector<std::int64_t>>;

/// The mixture of experts of a model, which is the same in every layer.
struct ExpertMixture {
  std::vector<std::string> layers{};  ///< in their order
  std::int64_t experts = 0;           ///< of a layer
  std::int64_t top_k = 0;             ///< chosen for a token
  std::int64_t groups = 1;            ///< of experts; only those of the best `top_groups` of them are chosen
  std::int64_t top_groups = 1;
  std::int64_t least_of_group = 1;  ///< experts that a group must have, because its best two are its score
  /// Why all layers must keep equally many experts; "": they need not.
  std::string uniform_reason{};
};

/// Throws RecipeError for a model whose experts cannot be removed, which names the reason. `where`: the modifier.
ExpertMixture expert_mixture(const Model& model, const std::string& where);

/// The changes by which only these experts stay: numbered anew in their order, with their rows of the router, and the numbers in the
/// config: one number, or one for each layer (model::kExpertCountsKey) where they differ. Tensors of layers for multi-token prediction,
/// whose experts nothing has measured, are left out. REQUIRES: some of every layer of expert_mixture(), equally many if it has a
/// uniform_reason. Throws RecipeError.
Changes keep_experts(const Model& model, const KeptExperts& kept, const std::string& where);

}  // namespace layerpress::rewrite
