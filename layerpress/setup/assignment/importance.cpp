#include "layerpress/setup/assignment/importance.h"

#include <algorithm>
#include <set>
#include <utility>

#include "layerpress/graph/weight_matrix.h"
#include "layerpress/recipe/gguf_recipe.h"

namespace layerpress::setup {
namespace {

/// An importance file is about the inputs of the model as it is.
void require_own_inputs(const OpenedModel& model, const compression::Assignments& assignments, const char* option) {
  if (assignments.transforms.empty() && model.rewritten.empty()) return;
  throw UsageError(
      "[options] {}: {} changes the model's linears or what they read, so that the figures would not fit the model; "
      "leave out one of them",
      option, assignments.transforms.empty() ? "the recipe" : assignments.transforms.front().transform->type());
}

/// Calls use(node, places) for all assigned linears.
template <typename Use>
void for_each_place(const OpenedModel& model, compression::Assignments& assignments, Use&& use) {
  const gguf::Architecture architecture = gguf::architecture_for(model.checkpoint->config());
  const graph::Graph& graph = model.traced.graph;
  for (auto& [n, assignment] : assignments.linears) {
    if (!graph::is_linear(graph.nodes[n].operation)) continue;
    const graph::WeightMatrix matrix = graph::weight_matrix(graph.nodes[n].operation).value();
    for (gguf::InputPlace& place : gguf::input_places(architecture, matrix.weight, matrix.columns))
      use(graph.nodes[n], assignment, std::move(place));
  }
}

}  // namespace

std::shared_ptr<const gguf::ImportanceFile> importance_file(const OneshotOptions& options) {
  if (options.from_imatrix.empty()) return nullptr;
  if (!options.imatrix.empty())
    throw UsageError("[options] --imatrix and --from-imatrix: a file is either made or used; give one of them");
  if (!recipe::asks_for_gguf(options))
    throw UsageError(
        "[options] --from-imatrix: only types of GGUF files are rounded with it; name an --output that ends in .gguf");
  return std::make_shared<gguf::ImportanceFile>(gguf::ImportanceFile::open(options.from_imatrix));
}

std::vector<std::string> take_importance(const gguf::ImportanceFile& file, const OpenedModel& model,
                                         const Modifiers& modifiers, compression::Assignments& assignments) {
  for (const auto& modifier : modifiers)
    if (modifier->needs_data())
      throw UsageError(
          "[options] --from-imatrix: {} measures inputs itself; use --algorithm rtn without an observer, or leave out "
          "--from-imatrix",
          modifier->type());
  require_own_inputs(model, assignments, "--from-imatrix");
  std::set<std::string> missing;
  bool found_any = false;
  for_each_place(model, assignments, [&](const graph::Node&, compression::Assignment& assignment, const auto& place) {
    const auto found = file.find(place);
    if (!found) {
      missing.insert(place.tensor);
      return;
    }
    assignment.importance = {found->sums, found->tokens};
    found_any = true;
  });
  if (!found_any)
    throw UsageError(
        "[options] --from-imatrix: the file has none of the model's tensors (such as {}); it is another "
        "model's",
        missing.empty() ? "blk.0.attn_q.weight" : *missing.begin());
  return {missing.begin(), missing.end()};
}

std::vector<MeasuredInputs> measure_inputs(const OpenedModel& model, compression::Assignments& assignments) {
  require_own_inputs(model, assignments, "--imatrix");
  std::vector<MeasuredInputs> measured;
  std::set<std::pair<std::string, std::int64_t>> known;
  const auto measure = [&](const graph::Node& node, compression::Assignment& assignment, gguf::InputPlace place) {
    if (!known.emplace(place.tensor, place.matrix).second) return;
    assignment.measures_inputs = true;
    measured.push_back({model.traced.graph.module_name(node), std::move(place)});
  };
  try {
    for_each_place(model, assignments, measure);
  } catch (const CheckpointError& unknown) {
    throw UsageError("[options] --imatrix: leave it out, because llama.cpp cannot have this model: {}", unknown.what());
  }
  return measured;
}

}  // namespace layerpress::setup
