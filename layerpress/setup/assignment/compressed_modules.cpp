#include "layerpress/setup/assignment/compressed_modules.h"

#include <algorithm>
#include <map>
#include <set>

#include "layerpress/base/text.h"
#include "layerpress/graph/facts/attention_heads.h"
#include "layerpress/graph/weight_matrix.h"
#include "layerpress/model/blocks/weight_names.h"
#include "layerpress/quant/targets/matching.h"
#include "layerpress/setup/opening/source_tensors.h"

namespace layerpress::setup {
namespace {

/// The schemes in use, and the modules that have one.
struct Compressed {
  std::map<std::string, int> kept;  // modules whose codes are the source's, and their schemes
  std::vector<const quant::QuantizationScheme*> schemes;
  std::vector<quant::TargetList> targets;  // by scheme
  std::set<std::string> classes;           // of compressed modules
  int recipe_schemes = 0;                  // the schemes before the source's

  int group_of(const quant::QuantizationScheme* scheme) const {
    return static_cast<int>(std::find(schemes.begin(), schemes.end(), scheme) - schemes.begin());
  }
  /// The module's scheme, or -1.
  int group_of(graph::NodeId n, const std::string& module, const compression::Assignments& assignments) const {
    if (assignments.linears.count(n) != 0) {
      const quant::QuantizationScheme* scheme = assignments.scheme_of(n);
      return scheme == nullptr ? -1 : group_of(scheme);
    }
    const auto found = kept.find(module);
    return found == kept.end() ? -1 : found->second;
  }
  /// A module that is not compressed is one to ignore if it is like one that is, or if a target means it.
  bool could_include(const quant::ModuleName& module) const {
    return classes.count(module.classes.front()) != 0 ||
           std::any_of(targets.begin(), targets.end(), [&](const auto& list) { return list.matches(module); });
  }
};

std::string class_of(const graph::Node& node) { return graph::is_linear(node.operation) ? "Linear" : "Embedding"; }

/// Adds a weight of the source, and its scheme unless another one has it.
void add_kept(const source::StoredWeight& weight, Compressed& found) {
  int group = 0;
  while (group < static_cast<int>(found.schemes.size()) &&
         (group < found.recipe_schemes || *found.schemes[static_cast<std::size_t>(group)] != weight.scheme))
    ++group;
  if (group == static_cast<int>(found.schemes.size())) {
    found.schemes.push_back(&weight.scheme);
    found.targets.emplace_back(weight.scheme.targets, "targets");
  }
  found.kept[parent_name(weight.name)] = group;
}

Compressed compressed_of(const OpenedModel& model, const compression::Assignments& assignments) {
  const graph::Graph& graph = model.traced.graph;
  Compressed found;
  const auto add = [&](const quant::QuantizationScheme* scheme, const std::string& class_name) {
    found.classes.insert(class_name);
    if (found.group_of(scheme) < static_cast<int>(found.schemes.size())) return;
    found.schemes.push_back(scheme);
    found.targets.emplace_back(scheme->targets, "targets");
  };
  for (const auto& [n, assignment] : assignments.linears)
    if (assignment.scheme->weights) add(assignment.scheme, class_of(graph.nodes[n]));
  for (const compression::QuantizedAttention& attention : assignments.attentions)
    if (attention.group != nullptr) add(attention.group, graph.modules[graph.nodes[attention.node].module].class_name);
  found.recipe_schemes = static_cast<int>(found.schemes.size());
  for (const std::string& name : model.kept) add_kept(model.quantized.at(name), found);
  return found;
}

/// Each target of each scheme by itself.
std::vector<quant::TargetList> single_targets(const Compressed& compressed) {
  std::vector<quant::TargetList> targets;
  for (const quant::QuantizationScheme* scheme : compressed.schemes)
    for (const std::string& target : scheme->targets) targets.emplace_back(std::vector<std::string>{target}, "targets");
  return targets;
}

/// Whether a target means the attention itself: it matches none of its linears. compressed-tensors then gives it the group.
bool is_targeted(const graph::Graph& graph, const std::vector<quant::TargetList>& targets,
                 const quant::ModuleName& attention) {
  return std::any_of(targets.begin(), targets.end(), [&](const quant::TargetList& target) {
    if (!target.matches(attention)) return false;
    return std::none_of(graph.nodes.begin(), graph.nodes.end(), [&](const graph::Node& node) {
      return graph::is_linear(node.operation) && graph.module_name(node).starts_with(attention.name + ".") &&
             target.matches({graph.module_name(node), {"Linear"}});
    });
  });
}

/// Adds a module by all of its names, of which a reader knows only one.
void add_module(const quant::ModuleName& module, const std::vector<std::string>& other_names, int group,
                target::GroupedModules& grouped) {
  grouped.modules.push_back({module.name, module.classes});
  for (const std::string& name : other_names) grouped.modules.push_back({name, module.classes});
  grouped.groups.resize(grouped.modules.size(), group);
}

/// Attentions whose queries are quantized, others of their classes, and those that targets mean. Readers match attentions, too.
void add_attentions(const OpenedModel& model, const Compressed& compressed, const compression::Assignments& assignments,
                    target::GroupedModules& grouped) {
  const graph::Graph& graph = model.traced.graph;
  const std::vector<quant::TargetList> targets = single_targets(compressed);
  std::map<graph::NodeId, int> groups;
  for (const compression::QuantizedAttention& attention : assignments.attentions)
    groups[attention.node] = attention.group == nullptr ? -1 : compressed.group_of(attention.group);
  for (graph::NodeId n = 0; n < static_cast<graph::NodeId>(graph.nodes.size()); ++n) {
    const graph::Node& node = graph.nodes[n];
    if (!graph::cached_attention(node.operation)) continue;
    const quant::ModuleName module{graph.module_name(node), {graph.modules[node.module].class_name}};
    const auto group = groups.find(n);
    const int place = group == groups.end() ? -1 : group->second;
    if (place < 0 && compressed.classes.count(module.classes.front()) == 0 && !is_targeted(graph, targets, module))
      continue;
    add_module(module, model::other_names(model.traced, module.name), place, grouped);
  }
}

/// The linear that makes logits; -1 if something else does.
graph::NodeId head_of(const graph::Graph& graph) {
  for (graph::ValueId value = graph.output; !graph.is_input(value);) {
    const graph::NodeId n = graph.values[value].producer;
    if (graph::is_linear(graph.nodes[n].operation)) return n;
    if (graph.nodes[n].inputs.size() != 1) return -1;
    value = graph.nodes[n].inputs[0];
  }
  return -1;
}

/// Linears of an imported model that have no node are not compressed, but look as if they were.
void add_left_out(const OpenedModel& model, const Compressed& compressed, target::GroupedModules& grouped) {
  for (const std::string& name : model.traced.left_out) {
    const quant::ModuleName module{name, {"Linear"}, model::other_names(model.traced, name)};
    if (compressed.could_include(module)) add_module(module, module.other_names, -1, grouped);
  }
}

}  // namespace

target::CompressedModules compressed_modules(const OpenedModel& model, const compression::Assignments& assignments) {
  const graph::Graph& graph = model.traced.graph;
  const Compressed compressed = compressed_of(model, assignments);
  target::CompressedModules result;
  target::GroupedModules& grouped = result.modules;
  grouped.gpt_oss = json_get_or<std::string>(model.checkpoint->config(), "model_type", "config.json", "") == "gpt_oss";
  for (const char* part : {"vision_config", "audio_config"})
    grouped.is_whole = grouped.is_whole && !json_has(model.checkpoint->config(), part);
  const graph::NodeId head = head_of(graph);
  std::set<std::string> visited;
  for (graph::NodeId n = 0; n < static_cast<graph::NodeId>(graph.nodes.size()); ++n) {
    const graph::Node& node = graph.nodes[n];
    if (!graph::weight_matrix(node.operation)) continue;
    const quant::ModuleName module{
        graph.module_name(node), {class_of(node)}, model::other_names(model.traced, graph.module_name(node))};
    visited.insert(module.name);
    const int group = compressed.group_of(n, module.name, assignments);
    if (group >= 0 || compressed.could_include(module)) add_module(module, module.other_names, group, grouped);
    if (n != head) continue;
    grouped.head = {module.name};
    grouped.head.insert(grouped.head.end(), module.other_names.begin(), module.other_names.end());
  }
  for (const auto& [module, group] : compressed.kept)
    if (visited.count(module) == 0) add_module({module, {"Linear"}}, {}, group, grouped);
  add_attentions(model, compressed, assignments, grouped);
  add_left_out(model, compressed, grouped);
  for (const quant::QuantizationScheme* scheme : compressed.schemes) result.schemes.push_back(*scheme);
  result.ignored = unread_modules_to_ignore(model, compressed.targets);
  if (!assignments.attentions.empty()) result.kv_cache_scheme = *assignments.attentions.back().args;
  return result;
}

bool unties_head(const OpenedModel& model, const compression::Assignments& assignments) {
  const graph::Graph& graph = model.traced.graph;
  const std::set<std::string> others = assignments.read_plain(graph);
  return std::any_of(assignments.linears.begin(), assignments.linears.end(), [&](const auto& assigned) {
    const graph::Node& node = graph.nodes[assigned.first];
    const bool is_end = graph.module_name(node) == "lm_head" || graph::is_embedding(node.operation);
    return (model.traced.tied_head && is_end) || others.count(graph::weight_matrix(node.operation).value().weight) != 0;
  });
}

target::CompressedParts compressed_parts(const OpenedModel& model, const compression::Assignments& assignments) {
  const graph::Graph& graph = model.traced.graph;
  target::CompressedParts parts;
  const auto add = [&](const std::string& module) {
    parts.experts = parts.experts || module.find(".experts.") != std::string::npos;
  };
  for (const auto& [n, assignment] : assignments.linears) {
    if (quant::is_dense(*assignment.scheme)) continue;
    add(graph.module_name(graph.nodes[n]));
    parts.embeddings = parts.embeddings || graph::is_embedding(graph.nodes[n].operation);
  }
  for (const std::string& weight : model.kept) add(weight);
  if (!assignments.attentions.empty()) parts.cache = *assignments.attentions.back().args;
  return parts;
}

}  // namespace layerpress::setup
