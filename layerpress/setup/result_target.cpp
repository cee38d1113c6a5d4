#include "layerpress/setup/result_target.h"

#include <algorithm>
#include <filesystem>
#include <map>
#include <set>
#include <variant>
#include <vector>

#include "layerpress/base/text.h"
#include "layerpress/gguf/mixture.h"
#include "layerpress/graph/weight_matrix.h"
#include "layerpress/recipe/gguf_recipe.h"
#include "layerpress/setup/assignment/written_recipe.h"
#include "layerpress/target/gguf_target.h"

namespace layerpress::setup {
namespace {

/// The name of the model's folder or hub id.
std::string last_part_of(const std::string& model) {
  const std::filesystem::path path = std::filesystem::path(model).lexically_normal();
  return (path.has_filename() ? path : path.parent_path()).filename().string();
}

std::set<std::string> embedding_weights(const graph::Graph& graph) {
  std::set<std::string> weights;
  for (const graph::Node& node : graph.nodes)
    if (const auto* embedding = std::get_if<graph::Embedding>(&node.operation)) weights.insert(embedding->weight);
  return weights;
}

/// A pattern for the linear and those like it of the other experts of its layer.
std::string pattern_for_experts(const std::string& module) {
  std::vector<std::string> parts = name_parts(module);
  if (const auto last = std::find_if(parts.rbegin(), parts.rend(), all_digits); last != parts.rend()) *last = "\\d+";
  return "re:" + join(parts, "\\.") + "$";
}

/// A linear or an embedding, and its tensor in the file.
struct Coded {
  std::string target;  ///< its name, or a pattern for it and its twins of the layer's other experts
  gguf::TensorShape tensor;
};

/// All of them, but heads that share an embedding's weight.
std::vector<Coded> coded_modules(const OpenedModel& model, const gguf::Architecture& architecture) {
  const graph::Graph& graph = model.traced.graph;
  const std::set<std::string> embeddings = embedding_weights(graph);
  std::vector<Coded> modules;
  std::map<std::string, std::size_t> index;  // by the tensor's name
  for (const graph::Node& node : graph.nodes) {
    const auto matrix = graph::weight_matrix(node.operation);
    if (!matrix || (graph::is_linear(node.operation) && embeddings.count(matrix->weight) != 0)) continue;
    const gguf::Placement placement = architecture.place(matrix->weight);
    if (placement.places.size() != 1) continue;
    const gguf::TensorPlace& place = placement.places.front();
    const auto [found, is_new] = index.emplace(place.name, modules.size());
    if (!is_new) {
      ++modules[found->second].tensor.matrices;
      continue;
    }
    const std::string& module = graph.module_name(node);
    const std::int64_t together = matrix->columns / std::max<std::int64_t>(1, place.tiled_columns.count());
    modules.push_back({place.expert ? pattern_for_experts(module) : module,
                       {.name = place.name, .columns = together, .rows = matrix->rows}});
  }
  return modules;
}

/// Groups by type. llama.cpp's rules count the tensors of a role in the order of their names.
OrderedJson groups_of(const std::string& mixture, const OpenedModel& model, bool has_importance) {
  const gguf::Architecture architecture = gguf::architecture_for(model.checkpoint->config());
  const std::vector<Coded> modules = coded_modules(model, architecture);
  std::vector<gguf::TensorShape> tensors;
  for (const Coded& module : modules) tensors.push_back(module.tensor);
  const std::vector<std::string> types = gguf::mixture_types(mixture, architecture, tensors, has_importance);
  OrderedJson groups = OrderedJson::object();
  for (std::size_t i = 0; i < modules.size(); ++i) {
    if (!gguf::may_be_quantized(modules[i].tensor)) continue;  // it is F32 in any file
    groups[types[i]]["format"] = types[i];
    groups[types[i]]["targets"].push_back(modules[i].target);
  }
  return groups;
}

}  // namespace

std::shared_ptr<const target::Target> make_target(const OneshotOptions& options, const recipe::Recipe& recipe,
                                                  const OpenedModel& model, const gguf::ImportanceFile* importance) {
  if (!recipe::asks_for_gguf(options)) return target::compressed_tensors_target();
  if (options.model_in_memory)
    throw UsageError(
        "[oneshot] a model in memory cannot become a GGUF, whose tokenizer is read from the model's folder; pass the "
        "folder "
        "or id, or save model and tokenizer with save_pretrained and pass that folder");
  target::GgufDescription description{.name = last_part_of(options.model),
                                      .recipe = with_earlier_recipe(recipe::to_yaml(recipe), model)};
  if (recipe::divides_gguf(options)) description.parts = std::filesystem::path(options.output).stem().string();
  description.source = model.file_metadata;
  for (const recipe::ModifierEntry& entry : recipe.modifiers)
    if (const std::string mixture = recipe::mixture_of(entry, /*for_gguf=*/true); !mixture.empty())
      description.file_type = gguf::mixture_file_type(mixture);
  if (importance != nullptr)
    description.importance = {last_part_of(options.from_imatrix), importance->origin(), importance->entries()};
  return target::gguf_target(*model.checkpoint, description);
}

recipe::Recipe with_block_types(const recipe::Recipe& recipe, const OpenedModel& model, bool for_gguf,
                                bool has_importance_file) {
  recipe::Recipe typed = recipe;
  for (recipe::ModifierEntry& entry : typed.modifiers) {
    const std::string mixture = recipe::mixture_of(entry, for_gguf);
    if (mixture.empty()) continue;
    // GPTQ knows the inputs; rounding does if it weighs errors by them.
    const bool has_importance =
        has_importance_file || entry.type == "GPTQModifier" || json_has(entry.arguments, "weight_observer");
    entry.arguments = recipe::with_groups_of_mixture(entry, groups_of(mixture, model, has_importance));
  }
  return typed;
}

}  // namespace layerpress::setup
