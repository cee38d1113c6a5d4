#include "layerpress/model/blocks/weight_names.h"

#include <algorithm>
#include <utility>

#include "layerpress/graph/renaming.h"

namespace layerpress::model {
namespace {

/// Renamings from the names with which an architecture is traced to others in use. One applies to models that have a
/// module of its first name.
const std::vector<graph::Renaming>& known_renamings() {
  static const std::vector<graph::Renaming> kAll = {
      // Mllama as transformers 5 names its modules
      {{"language_model.model", "model.language_model"},
       {"language_model.lm_head", "lm_head"},
       {"vision_model", "model.vision_model"},
       {"multi_modal_projector", "model.multi_modal_projector"}},
  };
  return kAll;
}

graph::Renaming reversed(const graph::Renaming& renaming) {
  graph::Renaming back;
  for (const auto& [name, other] : renaming) back.emplace_back(other, name);
  return back;
}

bool has_module(const graph::Graph& graph, const std::string& name) {
  return std::any_of(graph.modules.begin(), graph.modules.end(),
                     [&](const graph::Module& module) { return module.name == name; });
}

std::size_t count_stored(const graph::Graph& graph, const graph::Renaming& renaming,
                         const checkpoint::Checkpoint& checkpoint) {
  std::size_t count = 0;
  for (const graph::Node& node : graph.nodes)
    for (const graph::WeightUse& use : graph::weights_of(node.operation))
      count += checkpoint.contains(graph::renamed(use.name, renaming)) ? 1 : 0;
  return count;
}

}  // namespace

void use_stored_names(TracedModel& model, const checkpoint::Checkpoint& checkpoint) {
  std::size_t most = count_stored(model.graph, {}, checkpoint);
  const graph::Renaming* best = nullptr;
  for (const graph::Renaming& renaming : known_renamings())
    if (const std::size_t count = count_stored(model.graph, renaming, checkpoint); count > most) {
      most = count;
      best = &renaming;
    }
  if (best != nullptr) graph::rename(model.graph, *best);
}

std::vector<std::string> other_names(const TracedModel& model, const std::string& name) {
  std::vector<std::string> names;
  if (const auto known = model.aliases.find(name); known != model.aliases.end()) names = known->second;
  for (const graph::Renaming& renaming : known_renamings())
    for (const graph::Renaming& one : {renaming, reversed(renaming)})
      if (std::string other = graph::renamed(name, one); other != name && has_module(model.graph, one.front().first) &&
                                                         std::find(names.begin(), names.end(), other) == names.end())
        names.push_back(std::move(other));
  return names;
}

}  // namespace layerpress::model
