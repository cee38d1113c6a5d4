#include "layerpress/setup/opening/source_tensors.h"

#include <algorithm>
#include <set>
#include <string_view>

#include "layerpress/base/text.h"
#include "layerpress/graph/weight_matrix.h"
#include "layerpress/model/blocks/weight_names.h"
#include "layerpress/quant/targets/matching.h"
#include "layerpress/recipe/name_roots.h"
#include "layerpress/source/source_format.h"

namespace layerpress::setup {
namespace {

constexpr std::string_view kWeight = ".weight";

/// Heads whose own stored weight gives way to the embedding's, because either of the two is compressed.
std::vector<SourceTensors::Dropped> dropped_heads(const OpenedModel& model,
                                                  const compression::Assignments& assignments) {
  const graph::Graph& graph = model.traced.graph;
  std::set<std::string> compressed;
  for (const auto& [n, assignment] : assignments.linears)
    compressed.insert(graph::weight_matrix(graph.nodes[n].operation).value().weight);
  std::vector<SourceTensors::Dropped> dropped;
  for (const graph::Node& node : graph.nodes) {
    const auto* linear = std::get_if<graph::Linear>(&node.operation);
    if (linear == nullptr || compressed.count(linear->weight) == 0) continue;
    const std::string own = graph.module_name(node) + std::string(kWeight);
    if (own != linear->weight && model.checkpoint->contains(own))
      dropped.push_back({own, "config.json ties it to " + linear->weight});
  }
  return dropped;
}

std::string text_of(const std::vector<std::string>& copied, const std::set<std::string>& read) {
  constexpr std::size_t kMost = 4;
  std::vector<std::string> places;
  std::vector<recipe::NameRoot> roots = recipe::name_roots(copied, read);
  std::stable_sort(roots.begin(), roots.end(),
                   [](const auto& a, const auto& b) { return a.names.size() > b.names.size(); });
  for (const recipe::NameRoot& root : roots) {
    if (places.size() == kMost) {
      places.push_back(fmt::format("and {} more", roots.size() - kMost));
      break;
    }
    places.push_back(root.names.size() == 1 ? root.root : fmt::format("{} ({} tensors)", root.root, root.names.size()));
  }
  return join(places);
}

/// The module of a weight that a reader could take for a linear's or an embedding's, or for stacked experts'; "": it could not.
std::string module_of(const checkpoint::TensorSpec& tensor) {
  if (!c10::isFloatingType(tensor.dtype)) return "";
  const bool is_weight = tensor.name.ends_with(kWeight) && tensor.name.size() > kWeight.size();
  std::string module = is_weight ? tensor.name.substr(0, tensor.name.size() - kWeight.size()) : tensor.name;
  if (tensor.shape.size() == 3) return module;  // the experts of a layer
  return tensor.shape.size() == 2 && is_weight ? module : "";
}

bool any_matches(const std::vector<quant::TargetList>& targets, const quant::ModuleName& module) {
  return std::any_of(targets.begin(), targets.end(), [&](const auto& list) { return list.matches(module); });
}

/// Tables of other operations are embeddings to readers.
std::vector<std::string> tables_to_ignore(const OpenedModel& model, const std::vector<quant::TargetList>& targets) {
  std::set<std::string> compressible;  // an operation may read a linear's weight, too
  for (const graph::Node& node : model.traced.graph.nodes)
    if (const auto matrix = graph::weight_matrix(node.operation)) compressible.insert(matrix->weight);
  std::vector<std::string> entries;
  for (const graph::Node& node : model.traced.graph.nodes) {
    for (const graph::WeightUse& use : graph::weights_of(node.operation)) {
      if (compressible.count(use.name) != 0) continue;
      const checkpoint::TensorSpec& tensor = model.checkpoint->spec(use.name);
      const std::string module = tensor.shape.size() == 2 ? module_of(tensor) : "";
      if (module.empty()) continue;
      std::vector<std::string> names = model::other_names(model.traced, module);
      if (!any_matches(targets, {module, {"Embedding"}, names})) continue;
      entries.push_back(module);
      entries.insert(entries.end(), names.begin(), names.end());
    }
  }
  return entries;
}

/// Whether the tensor describes codes of a weight that is stored as values: some tools leave it when they decode a checkpoint.
bool is_leftover(const OpenedModel& model, const std::set<std::string>& read, const std::string& name) {
  static const std::set<std::string> kParts = {"weight_scale", "weight_zero_point", "weight_global_scale",
                                               "weight_shape", "weight_g_idx"};
  const std::string weight = parent_name(name) + std::string(kWeight);
  return kParts.contains(last_part(name)) && read.contains(weight) && !model.quantized.contains(weight);
}

}  // namespace

rewrite::Changes SourceTensors::changes() const {
  rewrite::Changes changes;
  for (const Dropped& tensor : dropped) changes.removed.push_back(tensor.name);
  return changes;
}

Json SourceTensors::to_json() const {
  Json left_out = Json::array();
  for (const Dropped& tensor : dropped) left_out.push_back({{"name", tensor.name}, {"reason", tensor.reason}});
  return {{"read", read}, {"copied", copied.size()}, {"copied_names", copied}, {"dropped", std::move(left_out)}};
}

SourceTensors source_tensors(const OpenedModel& model, const compression::Assignments& assignments,
                             const target::Target& target) {
  SourceTensors source;
  source.dropped = dropped_heads(model, assignments);
  const std::set<std::string> read = graph::weights_read(model.traced.graph);
  std::set<std::string> kept;  // attentions whose scales the output has, too
  for (const compression::QuantizedAttention& attention : assignments.attentions)
    if (attention.stored) kept.insert(model.traced.graph.module_name(model.traced.graph.nodes[attention.node]));
  std::set<std::string> read_parts;  // a stacked tensor of experts is a part of many
  for (const std::string& name : model.checkpoint->names())
    if (read.count(name) != 0)
      for (const checkpoint::StoredTensor& part : model.checkpoint->stored_parts(name)) read_parts.insert(part.name);
  source.read = read_parts.size();
  for (const std::string& name : model.checkpoint->names()) {
    const auto is_it = [&](const SourceTensors::Dropped& tensor) { return tensor.name == name; };
    const std::vector<checkpoint::StoredTensor> parts = model.checkpoint->stored_parts(name);
    if (read.count(name) != 0 || read_parts.count(parts.front().name) != 0) continue;
    if (!model.source_format.empty() && source::describes_activations(name) && !kept.contains(parent_name(name)))
      source.dropped.push_back({name, "it describes quantized activations of the source, which the output has not"});
    else if (is_leftover(model, read, name))
      source.dropped.push_back({name, "it describes codes that the weight no longer has"});
    else if (const auto reason = target.left_out(name))
      source.dropped.push_back({name, *reason});
    else if (std::none_of(source.dropped.begin(), source.dropped.end(), is_it))
      for (const checkpoint::StoredTensor& part : parts) source.copied.push_back(part.name);
  }
  std::vector<std::string> unchanged = source.copied;
  std::erase_if(unchanged, [&](const std::string& name) { return model.rewritten.contains(name); });
  source.copied_text = text_of(unchanged, read);
  return source;
}

std::vector<std::string> unread_modules_to_ignore(const OpenedModel& model,
                                                  const std::vector<quant::TargetList>& targets) {
  const graph::Graph& graph = model.traced.graph;
  const std::set<std::string> read = graph::weights_read(graph);
  std::set<std::string> visited;
  for (const graph::Node& node : graph.nodes) {
    const std::string& module = graph.module_name(node);
    visited.insert(module);
    for (const std::string& other : model::other_names(model.traced, module)) visited.insert(other);
  }
  std::vector<std::string> unread;
  for (const std::string& name : model.checkpoint->names()) {
    if (read.count(name) != 0) continue;
    const std::string module = module_of(model.checkpoint->spec(name));
    if (module.empty() || visited.count(module) != 0) continue;
    if (model.kept.count(name) != 0) {  // its codes have a group of their own
      visited.insert(module);
      continue;
    }
    if (any_matches(targets, {module, {"Linear", "Embedding"}, {}})) unread.push_back(module);
  }
  std::vector<std::string> entries = tables_to_ignore(model, targets);
  for (std::string& entry : recipe::ignore_entries(unread, visited)) entries.push_back(std::move(entry));
  return entries;
}

}  // namespace layerpress::setup
