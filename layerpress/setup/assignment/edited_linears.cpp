#include "layerpress/setup/assignment/edited_linears.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "layerpress/compression/edit.h"
#include "layerpress/graph/facts/expert_inputs.h"
#include "layerpress/graph/weight_matrix.h"
#include "layerpress/model/blocks/weight_names.h"

namespace layerpress::setup {
namespace {

using compression::EditPtr;

const std::string kLinearClass = "Linear";

/// The edits of a linear, in the order of the recipe.
struct LinearEdits {
  std::vector<EditPtr> edits;
  const compression::Modifier* first = nullptr;
};

/// Adds an entry's edits. What the recipe has quantized before cannot be edited.
void add_entry(const compression::EditingModifier& modifier, const std::vector<compression::ModelModule>& modules,
               const std::map<std::string, const compression::Modifier*>& quantized,
               std::map<std::string, LinearEdits>& edits) {
  const std::map<std::string, EditPtr> own = modifier.edits_of(modules);
  if (own.empty() && !modifier.may_edit_nothing())
    throw RecipeError(
        "[recipe.check] {}: its targets match no linear module; nothing would be edited; name modules (Linear, "
        "re:.*q_proj$), not their parameters (re:.*weight)",
        modifier.type());
  for (const auto& [module, edit] : own) {
    if (const auto before = quantized.find(module); before != quantized.end())
      throw RecipeError("[recipe.check] {} edits {}, which {} has quantized before; put {} first", modifier.type(),
                        module, before->second->type(), modifier.type());
    LinearEdits& linear = edits[module];
    linear.edits.push_back(edit);
    if (linear.first == nullptr) linear.first = &modifier;
  }
}

std::map<std::string, LinearEdits> edits_of(const OpenedModel& model, const Modifiers& modifiers,
                                            const compression::Assignments& assignments) {
  const graph::Graph& graph = model.traced.graph;
  const std::vector<compression::ModelModule> modules = modules_of(model.traced);
  std::map<std::string, const compression::Modifier*> quantized;  // by the entries so far
  std::map<std::string, LinearEdits> edits;
  for (const auto& entry : modifiers) {
    if (const auto* editing = dynamic_cast<const compression::EditingModifier*>(entry.get()))
      add_entry(*editing, modules, quantized, edits);
    for (const auto& [n, assignment] : assignments.linears)
      if (assignment.first == entry.get()) quantized[graph.module_name(graph.nodes[n])] = entry.get();
  }
  return edits;
}

/// What the encoding does first stands before the edits, because it would fill the zeros that they make.
std::vector<EditPtr> in_order(const LinearEdits& linear, const compression::Quantizer* encoding,
                              const std::string& module) {
  std::vector<EditPtr> edits = linear.edits;
  const EditPtr first = encoding == nullptr ? nullptr : encoding->first_edit();
  if (first != nullptr) edits.insert(edits.begin(), first);
  std::string fills;
  for (const EditPtr& edit : edits) {
    if (edit->wants_original()) fills = edit == first ? "the error_propagation of " + encoding->type() : edit->type();
    if (edit->reads_zeros() && !fills.empty())
      throw RecipeError(
          "[recipe.check] {}: {} keeps the zeros that it has, and {} would fill them before; leave that out (--quality "
          "best asks for error_propagation), or ignore it in one of them",
          module, edit->type(), fills);
  }
  return edits;
}

/// A rotation mixes the columns or rows of a weight, and with them its zeros.
void refuse_turned_zeros(const Modifiers& modifiers, const std::vector<EditPtr>& edits, const std::string& module) {
  for (const EditPtr& edit : edits)
    for (const auto& modifier : modifiers)
      if (edit->reads_zeros() && modifier->type() == "SpinQuantModifier")
        throw RecipeError(
            "[recipe.check] {}: {} keeps the zeros that it has, and {} fills them before; leave one of them out, or "
            "ignore the module",
            module, edit->type(), modifier->type());
}

/// An encoding that moves weights towards the original model's outputs does so by itself.
void leave_to_encoding(const compression::Quantizer* encoding, std::vector<EditPtr>& edits) {
  if (encoding != nullptr && encoding->wants_original())
    std::erase_if(edits, [](const EditPtr& edit) { return edit->wants_original(); });
}

/// Weights that the source holds in stacked or fused tensors.
std::set<std::string> held_together(const OpenedModel& model) {
  std::set<std::string> names;
  for (const std::vector<model::StackedTensor>& layer : model.traced.stacked_tensors)
    for (const model::StackedTensor& stacked : layer)
      if (model.stored->contains(stacked.name))
        for (const std::vector<std::string>& expert : stacked.members) names.insert(expert.begin(), expert.end());
  for (const checkpoint::FusedTensor& fused : model.traced.fused_tensors)
    if (model.stored->contains(fused.name))
      for (const checkpoint::FusedTensor::Member& member : fused.members) names.insert(member.name);
  return names;
}

[[noreturn]] void refuse_alone(const compression::Modifier& modifier, const std::string& name) {
  throw RecipeError(
      "[recipe.check] {} changes {}, which is a part of a larger tensor in the source, where readers of dense weights "
      "look for it; quantize it, too, or leave it out",
      modifier.type(), name);
}

}  // namespace

std::vector<compression::ModelModule> modules_of(const model::TracedModel& traced) {
  const graph::Graph& graph = traced.graph;
  const std::set<graph::NodeId> weighing = graph::weighing_linears(graph);
  std::map<std::string, std::int64_t> columns;
  std::set<std::string> routers, tied, embeddings;
  for (const graph::Node& node : graph.nodes)
    if (graph::is_embedding(node.operation)) embeddings.insert(graph::weight_matrix(node.operation)->weight);
  for (graph::NodeId n = 0; n < static_cast<graph::NodeId>(graph.nodes.size()); ++n) {
    const graph::Node& node = graph.nodes[n];
    if (!graph::is_linear(node.operation)) continue;
    columns[graph.module_name(node)] = graph::weight_matrix(node.operation)->columns;
    if (embeddings.contains(graph::weight_matrix(node.operation)->weight)) tied.insert(graph.module_name(node));
    if (weighing.contains(n) && graph.modules[node.module].class_name != kLinearClass)
      routers.insert(graph.module_name(node));
  }
  std::vector<compression::ModelModule> modules;
  for (const graph::Module& module : graph.modules) {
    const auto linear = columns.find(module.name);
    const bool is_linear = linear != columns.end(), is_router = routers.contains(module.name);
    modules.push_back({{module.name,
                        {is_linear && !is_router ? kLinearClass : module.class_name},
                        model::other_names(traced, module.name),
                        is_router},
                       is_linear,
                       is_linear ? linear->second : 0,
                       tied.contains(module.name)});
  }
  return modules;
}

compression::Assignment assignment_of(const OpenedModel& model, const std::string& weight,
                                      const quant::QuantizationScheme& scheme) {
  return {.scheme = &scheme,
          .scale_dtype = model.checkpoint->spec(weight).dtype,
          .computed = model.checkpoint->is_computed(weight)};
}

void add_edits(const OpenedModel& model, const Modifiers& modifiers, compression::Assignments& assignments) {
  const graph::Graph& graph = model.traced.graph;
  std::map<std::string, LinearEdits> edits = edits_of(model, modifiers, assignments);
  const std::set<std::string> together = held_together(model);
  std::map<std::pair<std::vector<EditPtr>, const compression::Quantizer*>, const compression::EditedEncoding*> known;
  for (graph::NodeId n = 0; n < static_cast<graph::NodeId>(graph.nodes.size()); ++n) {
    const graph::Node& node = graph.nodes[n];
    const auto found = edits.find(graph.module_name(node));
    if (found == edits.end() || !graph::is_linear(node.operation)) continue;
    const std::string weight = graph::weight_matrix(node.operation)->weight;
    auto assigned = assignments.linears.find(n);
    if (assigned == assignments.linears.end()) {
      if (together.count(weight) != 0) refuse_alone(*found->second.first, found->first);
      assigned = assignments.linears.emplace(n, assignment_of(model, weight, quant::dense_scheme())).first;
    }
    compression::Assignment& assignment = assigned->second;
    leave_to_encoding(assignment.encoding, found->second.edits);
    if (found->second.edits.empty()) continue;
    if (model.rewritten.count(weight) != 0) refuse_turned_zeros(modifiers, found->second.edits, found->first);
    const compression::EditedEncoding*& both = known[{found->second.edits, assignment.encoding}];
    if (both == nullptr) {
      assignments.edited.push_back(std::make_shared<compression::EditedEncoding>(
          in_order(found->second, assignment.encoding, found->first), assignment.encoding));
      both = assignments.edited.back().get();
    }
    assignment.modifier = both;
    assignment.first = found->second.first;
    assignment.edited = true;
  }
}

void check_transformed(const OpenedModel& model, const compression::Assignments& assignments) {
  const std::set<std::string> together = held_together(model);
  const std::set<std::string> plain = assignments.changed_plain(model.traced.graph);
  for (const compression::PlannedTransform& planned : assignments.transforms)
    for (const std::string& name : planned.site.place.parameters(model.traced.graph))
      if (plain.count(name) != 0 && together.count(name) != 0) refuse_alone(*planned.transform, name);
}

}  // namespace layerpress::setup
