#include "layerpress/setup/assignment/assignment.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>
#include <variant>

#include "layerpress/base/text.h"
#include "layerpress/graph/facts/expert_inputs.h"
#include "layerpress/graph/weight_matrix.h"
#include "layerpress/model/blocks/weight_names.h"
#include "layerpress/modifier/all_modifiers.h"
#include "layerpress/quant/block_scheme.h"
#include "layerpress/quant/rounding/stored_blocks.h"
#include "layerpress/quant/rounding/value_parameters.h"
#include "layerpress/quant/weight_numbers.h"
#include "layerpress/recipe/inherited_schemes.h"
#include "layerpress/recipe/separate_scaling.h"
#include "layerpress/setup/assignment/edited_linears.h"
#include "layerpress/setup/assignment/stored_parameters.h"
#include "layerpress/setup/assignment/transform_sites.h"
#include "layerpress/setup/assignment/unmatched_entries.h"

namespace layerpress::setup {
namespace {

/// The schemes of linears by module; null: it stays as it is.
using LinearSchemes = std::map<std::string, const quant::QuantizationScheme*>;

graph::WeightMatrix matrix_of(const graph::Graph& graph, graph::NodeId node) {
  return graph::weight_matrix(graph.nodes[node].operation).value();
}

/// Embeddings are rounded, whatever the modifier does with linears.
void check_calibrated(const Modifiers& modifiers, const compression::Assignments& assignments) {
  const auto& linears = assignments.linears;
  for (const auto& entry : modifiers) {
    const auto* modifier = dynamic_cast<const compression::Quantizer*>(entry.get());
    if (modifier == nullptr) continue;
    const auto compressed_by = [&](const compression::Quantizer* compressor) {
      return compressor != nullptr && std::any_of(linears.begin(), linears.end(), [&](const auto& assigned) {
               return assigned.second.encoding == compressor;
             });
    };
    if (modifier->needs_data() && modifier->kv_cache() == nullptr && compressed_by(modifier->for_embeddings()) &&
        !compressed_by(modifier))
      throw RecipeError(
          "[recipe.check] {}: its targets match embeddings only, which have no inputs to calibrate on; use "
          "QuantizationModifier with observer minmax or mse",
          modifier->type());
  }
}

/// Compares the numbers; targets and observers may differ.
bool same_numbers(const quant::QuantizationScheme* a, const quant::QuantizationScheme* b) {
  if (a == nullptr || b == nullptr) return a == b;
  const auto essential = [](quant::QuantizationScheme scheme) {
    scheme.targets.clear();
    if (!scheme.weights) return scheme;
    scheme.weights->observer.reset();
    scheme.weights->observer_kwargs = Json::object();
    scheme.weights->actorder.reset();
    return scheme;
  };
  return essential(*a) == essential(*b);
}

void check_fused(const OpenedModel& model, const LinearSchemes& scheme_of) {
  for (const auto& [name, scheme] : scheme_of)
    for (const model::FusedModules& together : model::fused_with(model.traced, name)) {
      if (together.names.front() != name) continue;
      for (const std::string& sibling : together.names) {
        const auto other = scheme_of.find(sibling);
        if (other != scheme_of.end() && !same_numbers(scheme, other->second))
          throw RecipeError(
              "[recipe.check] {} and {} would be compressed differently; inference engines fuse them, so give {} one "
              "scheme or ignore all of them",
              name, sibling, join(together.suffixes, "/"));
      }
    }
}

/// In a result that keeps ties, a head that shares the embedding's weight is stored there: in the embedding's scheme, or if the recipe names
/// none, in its own.
void move_tied_heads(const graph::Graph& graph, compression::Assignments& assignments) {
  std::map<std::string, graph::NodeId> embeddings;  // by weight
  for (graph::NodeId n = 0; n < static_cast<graph::NodeId>(graph.nodes.size()); ++n)
    if (graph::is_embedding(graph.nodes[n].operation)) embeddings.emplace(matrix_of(graph, n).weight, n);
  const std::map<graph::NodeId, compression::Assignment> linears = assignments.linears;
  for (const auto& [n, assignment] : linears) {
    const auto embedding = embeddings.find(matrix_of(graph, n).weight);
    if (embedding == embeddings.end() || embedding->second == n) continue;
    assignments.linears.erase(n);
    if (assignments.linears.contains(embedding->second)) continue;
    compression::Assignment moved = assignment;
    moved.modifier = moved.encoding = assignment.modifier->for_embeddings();
    const std::string& module = graph.module_name(graph.nodes[n]);
    if (moved.encoding == nullptr)
      throw RecipeError("[recipe.check] {} shares its weight with an embedding, which {} does not compress; ignore {}",
                        module, assignment.modifier->type(), module);
    assignments.linears[embedding->second] = std::move(moved);
  }
}

/// Rounding again what the source stores in the same scheme could only lose. Static scales of inputs are measured again.
void leave_stored_alike(const OpenedModel& model, compression::Assignments& assignments) {
  if (!model.keeps_codes) return;
  const graph::Graph& graph = model.traced.graph;
  const std::set<std::string> transformed = assignments.transformed(graph);
  std::erase_if(assignments.linears, [&](const auto& assigned) {
    const std::string& module = graph.module_name(graph.nodes[assigned.first]);
    const std::string weight = matrix_of(graph, assigned.first).weight;
    const auto stored = model.quantized.find(weight);
    const quant::QuantizationScheme& scheme = *assigned.second.scheme;
    if (assigned.second.edited || quant::is_dense(scheme) || stored == model.quantized.end() ||
        !stored->second.can_be_kept() || weight != module + ".weight" || transformed.count(weight) != 0 ||
        quant::has_stored_inputs(scheme) || !same_numbers(&stored->second.scheme, &scheme))
      return false;
    assignments.stored_alike.push_back(module);
    return true;
  });
}

/// Records for each compressed linear the other linears that engines fuse with it. Numbers that these have in common are rounded to
/// the dtype of their scales, so it is one dtype, even if their weights are stored in several.
void link_fused(const OpenedModel& model, compression::Assignments& assignments) {
  const graph::Graph& graph = model.traced.graph;
  std::map<std::string, graph::NodeId> nodes;
  for (const auto& [n, assignment] : assignments.linears) nodes[graph.module_name(graph.nodes[n])] = n;
  for (const auto& [name, n] : nodes)
    for (const model::FusedModules& together : model::fused_with(model.traced, name))
      for (const std::string& sibling : together.names)
        if (const auto other = nodes.find(sibling); other != nodes.end() && other->second != n)
          assignments.linears[n].fused.push_back(other->second);
  std::vector<graph::NodeId> mixed;
  for (const auto& [n, assignment] : assignments.linears)
    if (std::any_of(assignment.fused.begin(), assignment.fused.end(), [&, dtype = assignment.scale_dtype](auto other) {
          return assignments.linears.at(other).scale_dtype != dtype;
        }))
      mixed.push_back(n);
  for (const graph::NodeId n : mixed) assignments.linears[n].scale_dtype = at::kFloat;
}

/// NVFP4 holds what is stored in MXFP4 if its global scale is a power of two, for all linears that have it in common.
void find_mxfp4(const OpenedModel& model, compression::Assignments& assignments) {
  for (auto& [n, assignment] : assignments.linears) {
    const auto stored = model.quantized.find(matrix_of(model.traced.graph, n).weight);
    if (stored == model.quantized.end() || !stored->second.scheme.weights) continue;
    const quant::QuantizationArgs& weights = *stored->second.scheme.weights;
    if (!weights.is_float(4) || !quant::has_power_scales(weights)) continue;
    assignment.from_mxfp4 = true;
    for (const graph::NodeId fused : assignment.fused) assignments.linears.at(fused).from_mxfp4 = true;
  }
}

/// NVFP4's scales of groups are fractions of a number that belongs to the whole weight, where engines read one beside the blocks.
void scale_blocks(const graph::Graph& graph, const target::Target& target, compression::Assignments& assignments) {
  for (auto& [n, assignment] : assignments.linears)
    if (const auto* scaled = quant::with_scaled_blocks(*assignment.scheme);
        scaled != nullptr && target.reads_scale_of_blocks(matrix_of(graph, n).weight))
      assignment.scheme = scaled;
}

/// Weights that the source stores as integers or FP4 keep their values in blocks that can hold them.
void find_stored_codes(const OpenedModel& model, compression::Assignments& assignments) {
  if (!model.rewritten.empty()) return;
  const std::set<std::string> transformed = assignments.transformed(model.traced.graph);
  for (auto& [n, assignment] : assignments.linears) {
    const gguf::BlockType* type = quant::block_type(*assignment.scheme);
    const graph::WeightMatrix matrix = matrix_of(model.traced.graph, n);
    const auto stored = model.quantized.find(matrix.weight);
    if (type == nullptr || assignment.edited || stored == model.quantized.end() || !stored->second.can_be_kept() ||
        transformed.count(matrix.weight) != 0 ||
        !quant::holds_values(*assignment.scheme, stored->second.scheme, matrix.columns))
      continue;
    assignment.stored = std::make_shared<const compression::StoredCodes>(compression::StoredCodes{
        stored->second.scheme,
        [name = matrix.weight, scheme = stored->second.scheme, compressed = stored->second.compressed] {
          const std::vector<quant::NamedTensor> parts = compressed();
          return quant::decompress(scheme, name, [&](const std::string& suffix) -> std::optional<at::Tensor> {
            for (const quant::NamedTensor& part : parts)
              if (part.suffix == suffix) return part.tensor;
            return std::nullopt;
          });
        }});
  }
}

void check_held(const graph::Graph& graph, const compression::Assignments& assignments, const target::Target& target) {
  for (const auto& [n, assignment] : assignments.linears)
    if (const std::string refusal = target.refusal(*assignment.scheme); !refusal.empty())
      throw RecipeError("[recipe.check] {}: {}", graph.module_name(graph.nodes[n]), refusal);
  for (const auto& [n, assignment] : assignments.linears)
    if (assignment.edited && quant::block_type(*assignment.scheme) != nullptr)
      throw RecipeError("[recipe.check] {}: pruned weights do not stay zero in blocks of a GGUF; leave out {}",
                        graph.module_name(graph.nodes[n]), assignment.first->type());
  if (!assignments.stored.empty() && !target.holds_activation_scales())
    throw RecipeError("[recipe.check] {} has no place for scales of activations; leave them out of the recipe",
                      target.format());
}

void find_propagating(const graph::Graph& graph, compression::Assignments& assignments) {
  const std::set<std::string> transformed = assignments.transformed(graph);
  for (auto& [n, assignment] : assignments.linears)
    assignment.propagates = assignment.modifier->propagates() || transformed.count(matrix_of(graph, n).weight) != 0;
}

/// Modules for which engines read the scheme of one linear only, such as the experts of a layer.
void check_uniform(const OpenedModel& model, const LinearSchemes& scheme_of) {
  for (const std::string& module : model.traced.uniform_modules) {
    const auto first = scheme_of.lower_bound(module + ".");
    for (auto other = first; other != scheme_of.end() && other->first.starts_with(module + "."); ++other)
      if (!same_numbers(first->second, other->second))
        throw RecipeError(
            "[recipe.check] {} and {} would be compressed differently; inference engines run all linears of {} as one, "
            "so give them one scheme or ignore all of them",
            first->first, other->first, module);
  }
}

/// What the linears are that no recipe can reach.
std::string unreachable(const model::TracedModel& traced) {
  if (traced.left_out.empty()) return "";
  const std::string& first = traced.left_out.front();
  const auto reason = traced.left_out_reasons.find(first);
  return fmt::format(". {} no node in the imported graph; the first is {}{}",
                     counted(traced.left_out.size(), "linear") + (traced.left_out.size() == 1 ? " has" : " have"),
                     first, reason == traced.left_out_reasons.end() ? "" : ", because " + reason->second);
}

/// If patterns among the targets match it.
void note_left_router(const compression::Quantizer& modifier, quant::ModuleName module, graph::NodeId node,
                      compression::Assignments& assignments) {
  module.needs_own_target = false;
  if (modifier.scheme_for(module) != nullptr) assignments.left_routers.push_back(node);
}

/// Why a recipe compresses nothing, and what could be done.
std::string nothing_to_do(const OpenedModel& model, const Modifiers& modifiers) {
  std::set<std::string> targets, ignored;
  for (const auto& modifier : modifiers)
    if (const auto* quantizer = dynamic_cast<const compression::Quantizer*>(modifier.get())) {
      for (const auto& group : quantizer->scheme_groups())
        targets.insert(group.scheme->targets.begin(), group.scheme->targets.end());
      for (const std::string& entry : quantizer->ignore_entries()) ignored.insert(entry);
    }
  ignored.erase("");  // how a command line says "nothing"
  std::string hints;
  for (const UnmatchedEntry& entry : unmatched_entries(model, modifiers)) {
    if (entry.list != "targets") continue;
    targets.erase(entry.entry);
    if (!entry.hint.empty()) hints += "; " + entry.hint;
  }
  const std::string others = unreachable(model.traced);
  if (targets.empty())
    return fmt::format("the recipe's targets match no module of {}{}{}", model.architecture, hints, others);
  const std::string matching = join({targets.begin(), targets.end()});
  const quant::TargetList list({targets.begin(), targets.end()}, "targets");
  const bool means_weights =
      std::any_of(model.traced.graph.nodes.begin(), model.traced.graph.nodes.end(), [&](const auto& node) {
        const std::string& name = model.traced.graph.module_name(node);
        return graph::weight_matrix(node.operation) &&
               list.matches({name,
                             {model.traced.graph.modules[node.module].class_name},
                             model::other_names(model.traced, name)});
      });
  if (ignored.empty() || !means_weights)
    return fmt::format("the recipe's targets match only modules without a weight to compress ({}); name linears{}",
                       matching, others);
  return fmt::format("the recipe ignores ({}) all modules that its targets match ({}){}",
                     join_first({ignored.begin(), ignored.end()}, 4), matching, others);
}

/// What a modifier does with a module. Throws RecipeError if it cannot do it.
compression::Assignment assignment_by(const compression::Quantizer& modifier, const quant::QuantizationScheme& scheme,
                                      const OpenedModel& model, graph::NodeId n) {
  const graph::Graph& graph = model.traced.graph;
  const bool is_linear = graph::is_linear(graph.nodes[n].operation);
  const std::string& module = graph.module_name(graph.nodes[n]);
  const compression::Quantizer* encoding = is_linear ? &modifier : modifier.for_embeddings();
  if (encoding == nullptr)
    throw RecipeError("[recipe.check] {} does not compress embeddings; ignore {}", modifier.type(), module);
  if (!is_linear && quant::has_stored_inputs(scheme))
    throw RecipeError("[recipe.check] {}: an embedding has no inputs to quantize; ignore it or give it another scheme",
                      module);
  compression::Assignment assignment = assignment_of(model, matrix_of(graph, n).weight, scheme);
  assignment.modifier = assignment.encoding = encoding;
  assignment.first = &modifier;
  return assignment;
}

/// Gives each linear and each embedding that a modifier targets its encoding.
LinearSchemes assign_encodings(const OpenedModel& model, const Modifiers& modifiers,
                               compression::Assignments& assignments) {
  const graph::Graph& graph = model.traced.graph;
  const std::set<graph::NodeId> weighing = graph::weighing_linears(graph);
  LinearSchemes scheme_of;
  for (graph::NodeId n = 0; n < static_cast<graph::NodeId>(graph.nodes.size()); ++n) {
    const graph::Node& node = graph.nodes[n];
    if (!graph::weight_matrix(node.operation)) continue;
    const bool is_linear = graph::is_linear(node.operation);
    const quant::ModuleName module{graph.module_name(node),
                                   {graph.modules[node.module].class_name},
                                   model::other_names(model.traced, graph.module_name(node)),
                                   weighing.contains(n)};
    if (is_linear) scheme_of[module.name] = nullptr;
    for (const auto& entry : modifiers) {
      const auto* modifier = dynamic_cast<const compression::Quantizer*>(entry.get());
      if (modifier == nullptr) continue;
      const quant::QuantizationScheme* scheme = modifier->scheme_for(module);
      if (scheme == nullptr) {
        if (module.needs_own_target) note_left_router(*modifier, module, n, assignments);
        continue;
      }
      if (const auto other = assignments.linears.find(n); other != assignments.linears.end())
        throw RecipeError("[recipe.check] module {} is a target of two modifiers, {} and {}; ignore it in one of them",
                          module.name, other->second.modifier->type(), modifier->type());
      assignments.linears[n] = assignment_by(*modifier, *scheme, model, n);
      if (is_linear && !quant::is_dense(*scheme)) scheme_of[module.name] = scheme;
    }
  }
  return scheme_of;
}

/// Takes their schemes from the linears whose weights the result divides.
void leave_divided(const graph::Graph& graph, const target::Target& target, compression::Assignments& assignments) {
  std::erase_if(assignments.linears, [&](const auto& entry) {
    const graph::WeightMatrix matrix = matrix_of(graph, entry.first);
    const bool leaves = !quant::is_dense(*entry.second.scheme) && !target.left_out(matrix.weight) &&
                        target.plain_forms({matrix.weight, at::kFloat, {matrix.rows, matrix.columns}}).size() > 1;
    if (leaves) assignments.left_divided.push_back(entry.first);
    return leaves;
  });
}

void check_not_empty(const OpenedModel& model, const Modifiers& modifiers,
                     const compression::Assignments& assignments) {
  const bool means_weights = std::any_of(modifiers.begin(), modifiers.end(), [](const auto& modifier) {
    const auto* quantizer = dynamic_cast<const compression::Quantizer*>(modifier.get());
    if (quantizer == nullptr) return false;
    const auto groups = quantizer->scheme_groups();
    return std::any_of(groups.begin(), groups.end(),
                       [](const auto& group) { return group.scheme->weights.has_value(); });
  });
  if (!assignments.linears.empty() || !assignments.transforms.empty() ||
      (!assignments.attentions.empty() && !means_weights) || !model.rewritten.empty())
    return;
  if (assignments.stored_alike.empty())
    throw RecipeError("[recipe.check] nothing would be done: {}", nothing_to_do(model, modifiers));
  throw RecipeError(
      "[recipe.check] all {} targets are already stored in the recipe's scheme, so nothing would be done; "
      "use the model as it is, or choose another scheme",
      assignments.stored_alike.size());
}

}  // namespace

Modifiers make_modifiers(const recipe::Recipe& recipe) {
  if (recipe.modifiers.empty()) throw RecipeError("[recipe] no modifier, so nothing would be done");
  Modifiers modifiers;
  for (const recipe::ModifierEntry& entry :
       recipe::with_inherited_schemes(recipe::with_separate_scaling(recipe)).modifiers)
    modifiers.push_back(modifier::make_modifier(entry.type, entry.arguments, entry.where));
  return modifiers;
}

compression::Assignments assign(const OpenedModel& model, const Modifiers& modifiers, const target::Target& target) {
  const graph::Graph& graph = model.traced.graph;
  compression::Assignments assignments;
  const LinearSchemes scheme_of = assign_encodings(model, modifiers, assignments);
  leave_divided(graph, target, assignments);
  if (target.keeps_ties()) move_tied_heads(graph, assignments);
  add_edits(model, modifiers, assignments);
  plan_transforms(graph, modifiers, assignments);
  check_transformed(model, assignments);
  leave_stored_alike(model, assignments);
  if (target.fuses_linears()) link_fused(model, assignments);
  find_mxfp4(model, assignments);
  scale_blocks(graph, target, assignments);
  find_stored_codes(model, assignments);
  plan_stored_parameters(model, modifiers, assignments);
  check_not_empty(model, modifiers, assignments);
  keep_stored_attentions(model, target, assignments);
  check_held(graph, assignments, target);
  check_calibrated(modifiers, assignments);
  if (target.fuses_linears()) {
    check_fused(model, scheme_of);
    check_uniform(model, scheme_of);
  }
  find_propagating(graph, assignments);
  return assignments;
}

std::vector<std::string> kernel_warnings(const OpenedModel& model, const compression::Assignments& assignments,
                                         const target::Target& target) {
  std::vector<std::string> warnings;
  for (const auto& edited : assignments.edited)
    for (const compression::EditPtr& edit : edited->edits())
      if (const kernels::SparsePattern pattern = edit->pattern(); pattern.group > 0)
        if (const std::string gap = target.sparsity_gap(pattern.pruned, pattern.group);
            !gap.empty() && std::find(warnings.begin(), warnings.end(), gap) == warnings.end())
          warnings.push_back(gap);
  if (!assignments.attentions.empty())
    if (const auto gap = target.cache_gap(*assignments.attentions.back().args)) warnings.push_back(*gap);
  for (const auto& [node, assignment] : assignments.linears) {
    if (quant::is_dense(*assignment.scheme)) continue;
    const graph::WeightMatrix matrix = matrix_of(model.traced.graph, node);
    const bool is_embedding = !graph::is_linear(model.traced.graph.nodes[node].operation);
    const auto gap = target.kernel_gap(*assignment.scheme, matrix.rows, matrix.columns, is_embedding);
    if (!gap) continue;
    const std::string text =
        fmt::format("{}: {}", model.traced.graph.module_name(model.traced.graph.nodes[node]), *gap);
    const auto same_reason = [&](const std::string& w) {
      return w.substr(w.find(": ")) == text.substr(text.find(": "));
    };
    if (std::none_of(warnings.begin(), warnings.end(), same_reason)) warnings.push_back(text);
  }
  return warnings;
}

}  // namespace layerpress::setup
