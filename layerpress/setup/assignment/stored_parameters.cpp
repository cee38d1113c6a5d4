#include "layerpress/setup/assignment/stored_parameters.h"

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <utility>
#include <variant>

#include "layerpress/base/text.h"
#include "layerpress/graph/facts/attention_heads.h"
#include "layerpress/graph/weight_matrix.h"
#include "layerpress/model/blocks/weight_names.h"
#include "layerpress/quant/weight_numbers.h"

namespace layerpress::setup {
namespace {

using compression::StoredParameters;
using Values = std::vector<graph::ValueId>;

/// Equal lists of values, once.
class ValueLists {
 public:
  std::shared_ptr<const Values> of(Values values) {
    std::sort(values.begin(), values.end());
    values.erase(std::unique(values.begin(), values.end()), values.end());
    std::shared_ptr<const Values>& known = lists_[values];
    if (!known) known = std::make_shared<const Values>(std::move(values));
    return known;
  }

 private:
  std::map<Values, std::shared_ptr<const Values>> lists_;
};

/// The inputs of linears that engines run with one global scale.
class CommonInputs {
 public:
  CommonInputs(const model::TracedModel& model, const compression::Assignments& assignments)
      : graph_(model.graph), assignments_(assignments) {
    for (const auto& [n, assignment] : assignments_.linears)
      for (const std::string& module : model.uniform_modules)
        if (const std::string name = graph_.module_name(graph_.nodes[n]); name.starts_with(module + ".")) {
          projection_of_[n] = module + " " + leaf(name);
          inputs_[projection_of_[n]].push_back(input(n));
        }
  }

  Values of(graph::NodeId n) const {
    Values values = {input(n)};
    for (const graph::NodeId fused : assignments_.linears.at(n).fused) values.push_back(input(fused));
    if (const auto projection = projection_of_.find(n); projection != projection_of_.end()) {
      const Values& others = inputs_.at(projection->second);
      values.insert(values.end(), others.begin(), others.end());
    }
    return values;
  }

 private:
  static std::string leaf(const std::string& name) { return name.substr(name.rfind('.') + 1); }
  graph::ValueId input(graph::NodeId n) const { return graph_.nodes[n].inputs[0]; }

  const graph::Graph& graph_;
  const compression::Assignments& assignments_;
  std::map<graph::NodeId, std::string> projection_of_;  // "model.layers.0.mlp.experts down_proj"
  std::map<std::string, Values> inputs_;
};

void add_inputs(const OpenedModel& model, ValueLists& lists, compression::Assignments& assignments) {
  const CommonInputs common(model.traced, assignments);
  for (const auto& [n, assignment] : assignments.linears) {
    if (!graph::is_linear(model.traced.graph.nodes[n].operation)) continue;
    compression::RangeStatisticPtr range = assignment.modifier->input_range(*assignment.scheme);
    if (range == nullptr) continue;
    const quant::QuantizationArgs& args = *assignment.scheme->input_activations;
    Values values = {model.traced.graph.nodes[n].inputs[0]};
    if (quant::has_global_scale(args)) values = common.of(n);
    assignments.stored.push_back(
        {n, {"input", &args, assignment.scale_dtype}, std::move(range), lists.of(std::move(values))});
  }
}

/// The modules of linears by the modules around them.
std::map<std::string, std::set<std::string>> linears_by_parent(const graph::Graph& graph) {
  std::map<std::string, std::set<std::string>> children;
  for (const graph::Node& node : graph.nodes)
    if (graph::is_linear(node.operation)) {
      const std::string& name = graph.module_name(node);
      children[parent_name(name)].insert(name.substr(name.rfind('.') + 1));
    }
  return children;
}

class AttentionPlanner {
 public:
  AttentionPlanner(const OpenedModel& model, const Modifiers& modifiers, ValueLists& lists,
                   compression::Assignments& assignments)
      : model_(model), graph_(model.traced.graph), modifiers_(modifiers), lists_(lists), assignments_(assignments) {}

  void plan() {
    for (graph::NodeId n = 0; n < static_cast<graph::NodeId>(graph_.nodes.size()); ++n)
      if (const auto attention = graph::cached_attention(graph_.nodes[n].operation)) plan(n, *attention);
    for (const auto& entry : modifiers_) {
      const auto* modifier = dynamic_cast<const compression::Quantizer*>(entry.get());
      if (modifier != nullptr && modifier->kv_cache() != nullptr) require_all_seen(*modifier);
    }
  }

 private:
  void plan(graph::NodeId n, const graph::AttentionHeads& attention) {
    const graph::Node& node = graph_.nodes[n];
    const std::string& name = graph_.module_name(node);
    const quant::ModuleName module{
        name, {graph_.modules[node.module].class_name}, model::other_names(model_.traced, name)};
    std::optional<compression::AttentionScheme> chosen;
    for (const auto& entry : modifiers_) {
      const auto* modifier = dynamic_cast<const compression::Quantizer*>(entry.get());
      const auto scheme = modifier == nullptr ? std::nullopt : modifier->attention_scheme(module);
      if (!scheme) continue;
      if (chosen && (chosen->group != scheme->group || !(*chosen->args == *scheme->args)))
        throw RecipeError("[recipe.check] {}: two modifiers quantize its keys and values differently; keep one of them",
                          name);
      chosen = scheme;
    }
    if (!chosen) return;
    if (linears_[name].count("kv_b_proj") != 0)
      throw RecipeError(
          "[recipe.check] {}: keys and values of latent attention (MLA) cannot be quantized, because engines cache the "
          "latent instead; leave out kv_cache_scheme and groups for attention",
          name);
    for (const compression::QuantizedAttention& other : assignments_.attentions)
      if (graph_.module_name(graph_.nodes[other.node]) == name)
        throw RecipeError(
            "[recipe.check] {}: it computes several attentions, whose keys and values have no scales of their own in a "
            "checkpoint; leave out kv_cache_scheme and groups for attention",
            name);
    assignments_.attentions.push_back({n, chosen->args, chosen->group});
    if (chosen->group != nullptr) add(n, *chosen, "q", 0, attention.heads, attention.head_dim);
    add(n, *chosen, "k", 1, attention.kv_heads, attention.head_dim);
    add(n, *chosen, "v", 2, attention.kv_heads, attention.value_dim);
  }

  void add(graph::NodeId n, const compression::AttentionScheme& scheme, const char* name, std::size_t input,
           std::int64_t heads, std::int64_t head_dim) {
    assignments_.stored.push_back({n,
                                   {name, scheme.args, dtype_of(n), heads},
                                   scheme.range(head_dim),
                                   lists_.of({graph_.nodes[n].inputs[input]})});
  }

  /// That of the attention's weights.
  at::ScalarType dtype_of(graph::NodeId n) const {
    const std::string& name = graph_.module_name(graph_.nodes[n]);
    for (const graph::Node& node : graph_.nodes)
      if (const auto* linear = std::get_if<graph::Linear>(&node.operation);
          linear != nullptr && parent_name(parent_name(linear->weight)) == name)
        return model_.checkpoint->spec(linear->weight).dtype;
    return model_.stored_dtype;
  }

  /// A cache of which some layers have no scales would be served with scales of one.
  void require_all_seen(const compression::Quantizer& modifier) const {
    if (assignments_.attentions.empty())
      throw RecipeError(
          "[recipe.check] {}: kv_cache_scheme: {} has no attention whose keys and values a quantized cache can hold; "
          "{}",
          modifier.type(), model_.architecture, kWithout);
    std::set<std::string> seen;
    for (const graph::Node& node : graph_.nodes)
      if (graph::cached_attention(node.operation) || std::holds_alternative<graph::VisionAttention>(node.operation))
        seen.insert(graph_.module_name(node));
    for (const graph::Module& module : graph_.modules) {
      if (upper_case(module.class_name).find("ATTENTION") == std::string::npos || seen.count(module.name) != 0)
        continue;
      const auto found = linears_.find(module.name);
      if (found == linears_.end()) continue;
      for (const char* key : {"k_proj", "qkv_proj", "kv_b_proj"})
        if (found->second.count(key) != 0)
          throw RecipeError(
              "[recipe.check] {}: kv_cache_scheme: its keys and values are computed inside fused operators, where "
              "ranges cannot be measured; {}",
              module.name, kWithout);
    }
  }

  static constexpr const char* kWithout =
      "leave kv_cache_scheme out, and for --scheme nvfp4-fp8, which asks for it, write a recipe with its groups alone "
      "(docs/recipes/nvfp4.md)";

  const OpenedModel& model_;
  const graph::Graph& graph_;
  const Modifiers& modifiers_;
  ValueLists& lists_;
  compression::Assignments& assignments_;
  std::map<std::string, std::set<std::string>> linears_ = linears_by_parent(graph_);
};

}  // namespace

void plan_stored_parameters(const OpenedModel& model, const Modifiers& modifiers,
                            compression::Assignments& assignments) {
  ValueLists lists;
  add_inputs(model, lists, assignments);
  AttentionPlanner(model, modifiers, lists, assignments).plan();
  std::stable_sort(assignments.stored.begin(), assignments.stored.end(),
                   [](const StoredParameters& a, const StoredParameters& b) { return a.reader < b.reader; });
}

void keep_stored_attentions(const OpenedModel& model, const target::Target& target,
                            compression::Assignments& assignments) {
  if (!target.holds_activation_scales() || !assignments.attentions.empty()) return;
  if (!assignments.transforms.empty() || !model.rewritten.empty()) return;
  const graph::Graph& graph = model.traced.graph;
  for (graph::NodeId n = 0; n < static_cast<graph::NodeId>(graph.nodes.size()); ++n) {
    if (!graph::cached_attention(graph.nodes[n].operation)) continue;
    const auto found = model.quantized_attentions.find(graph.module_name(graph.nodes[n]));
    if (found == model.quantized_attentions.end()) continue;
    const auto& [args, group] = found->second;
    assignments.attentions.push_back({n, &args, group.get(), /*stored=*/true});
  }
}

void check_common_parameters(const graph::Graph& graph, const std::vector<graph::Subgraph>& subgraphs,
                             const compression::Assignments& assignments) {
  std::map<graph::NodeId, std::size_t> subgraph_of;
  for (std::size_t s = 0; s < subgraphs.size(); ++s)
    for (const graph::NodeId n : subgraphs[s].nodes) subgraph_of[n] = s;
  std::map<const void*, graph::NodeId> first;
  for (const StoredParameters& stored : assignments.stored) {
    if (stored.values->size() == 1) continue;
    const graph::NodeId other = first.emplace(stored.values.get(), stored.reader).first->second;
    if (subgraph_of.at(other) != subgraph_of.at(stored.reader))
      throw UsageError(
          "[options] --sequential-targets: {} and {} have one input scale in common, but would be compressed in "
          "different steps; choose whole layers",
          graph.module_name(graph.nodes[other]), graph.module_name(graph.nodes[stored.reader]));
  }
}

}  // namespace layerpress::setup
