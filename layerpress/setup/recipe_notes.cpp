#include "layerpress/setup/recipe_notes.h"

#include <algorithm>
#include <set>
#include <utility>

#include "layerpress/base/text.h"
#include "layerpress/model/blocks/decoder_config.h"
#include "layerpress/model/blocks/weight_names.h"
#include "layerpress/quant/block_scheme.h"
#include "layerpress/recipe/gguf_recipe.h"
#include "layerpress/recipe/standard_recipe.h"
#include "layerpress/setup/assignment/compressed_modules.h"
#include "layerpress/setup/assignment/unmatched_entries.h"

namespace layerpress::setup {
namespace {

using Notes = std::vector<std::string>;

bool contains(const std::vector<std::string>& list, const std::string& entry) {
  return std::find(list.begin(), list.end(), entry) != list.end();
}

void add_unused_arguments(const Modifiers& modifiers, Notes& notes) {
  std::vector<std::string> unused;
  for (const auto& modifier : modifiers)
    for (const std::string& argument : modifier->arguments_without_effect())
      if (!contains(unused, argument)) unused.push_back(argument);
  if (!unused.empty())
    notes.push_back(
        fmt::format("the recipe's {} {} no effect here", join(unused), unused.size() == 1 ? "has" : "have"));
}

/// The targets of groups that get no module, each with its note.
std::set<std::string> add_unused_groups(const RunSetup& setup, const std::vector<UnmatchedEntry>& unmatched,
                                        Notes& notes) {
  std::set<const quant::QuantizationScheme*> used;
  std::set<std::string> unused_targets;
  for (const auto& [node, assignment] : setup.assignments.linears) used.insert(assignment.scheme);
  for (const compression::QuantizedAttention& attention : setup.assignments.attentions) used.insert(attention.group);
  for (const auto& modifier : setup.modifiers) {
    const auto* quantizer = dynamic_cast<const compression::Quantizer*>(modifier.get());
    if (quantizer == nullptr) continue;
    for (const std::string& module : setup.assignments.stored_alike)  // which the source has in the group's scheme
      used.insert(quantizer->scheme_for({module, {"Linear"}, model::other_names(setup.model.traced, module)}));
    for (const auto& [name, scheme] : quantizer->scheme_groups()) {
      const quant::QuantizationScheme* scaled = quant::with_scaled_blocks(*scheme);
      if (used.contains(scheme) || (scaled != nullptr && used.contains(scaled))) continue;
      const std::vector<std::string>& targets = scheme->targets;
      unused_targets.insert(targets.begin(), targets.end());
      std::string hint;
      std::size_t without_match = 0;
      for (const UnmatchedEntry& entry : unmatched) {
        if (entry.list != "targets" || !contains(targets, entry.entry)) continue;
        ++without_match;
        if (hint.empty() && !entry.hint.empty()) hint = "; " + entry.hint;
      }
      notes.push_back(fmt::format(
          "{}: group '{}' compresses nothing: its targets ({}) match {}{}", modifier->type(), name, join(targets),
          without_match == targets.size() ? "no module" : "only modules that are ignored or belong to another group",
          hint));
    }
  }
  return unused_targets;
}

/// The defaults of options, and what the standard recipe adds to them, may match nothing, also in the recipe of a result.
bool is_from_user(const OneshotOptions& options, const UnmatchedEntry& entry) {
  if (!options.recipe.empty()) return !recipe::is_standard_pattern(entry.entry);
  const OneshotOptions defaults;
  const bool is_ignore = entry.list == "ignore";
  return contains(is_ignore ? options.ignore : options.targets, entry.entry) &&
         !contains(is_ignore ? defaults.ignore : defaults.targets, entry.entry);
}

/// `noted`: targets that have their note.
void add_unmatched(const OneshotOptions& options, const std::vector<UnmatchedEntry>& unmatched,
                   const std::set<std::string>& noted, Notes& notes) {
  for (const UnmatchedEntry& entry : unmatched)
    if (is_from_user(options, entry) && (entry.list != "targets" || !noted.contains(entry.entry)))
      notes.push_back(fmt::format("{}{}: {} matches no module{}{}", options.recipe.empty() ? "--" : "", entry.list,
                                  entry.entry, entry.hint.empty() ? "" : "; ", entry.hint));
}

/// --ignore names what stays as it is instead of its default, which the schemes of GGUFs do not have.
void add_replaced_default(const OneshotOptions& options, const RunSetup& setup, Notes& notes) {
  if (!options.recipe.empty() || recipe::asks_for_gguf(options)) return;
  const graph::Graph& graph = setup.model.traced.graph;
  for (const std::string& entry : OneshotOptions().ignore) {
    if (contains(options.ignore, entry)) continue;
    const quant::TargetList list({entry}, "ignore");
    for (const auto& [node, assignment] : setup.assignments.linears) {
      const std::string& name = graph.module_name(graph.nodes[node]);
      if (!list.matches({name, {}, model::other_names(setup.model.traced, name)})) continue;
      notes.push_back(
          fmt::format("--ignore replaces its default: {} is quantized, too{}; add {} to --ignore to leave it", name,
                      setup.model.traced.tied_head ? ", and gets a weight apart from the embedding's" : "", entry));
    }
  }
}

/// "1 linear stays as it is (its name)", "8 linears stay as they are (the first one's name, ...)". REQUIRES: `left` is not empty.
std::string stays(const graph::Graph& graph, const std::vector<graph::NodeId>& left, const char* one,
                  const char* many) {
  const std::string& first = graph.module_name(graph.nodes[left.front()]);
  return left.size() == 1 ? fmt::format("1 {} stays as it is ({})", one, first)
                          : fmt::format("{} {} stay as they are ({}, ...)", left.size(), many, first);
}

void add_left_routers(const RunSetup& setup, Notes& notes) {
  const auto& left = setup.assignments.left_routers;
  if (left.empty()) return;
  const graph::Graph& graph = setup.model.traced.graph;
  std::set<std::string> classes;
  for (const graph::NodeId node : left) classes.insert(graph.modules[graph.nodes[node].module].class_name);
  notes.push_back(
      fmt::format("{} although patterns among the targets match: {} loads routers and gates uncompressed "
                  "only; to compress them, put their full names or class ({}) into the targets",
                  stays(graph, left, "router or gate", "routers and gates"), setup.target->engines(),
                  join({classes.begin(), classes.end()})));
}

void add_left_divided(const RunSetup& setup, Notes& notes) {
  const auto& left = setup.assignments.left_divided;
  if (left.empty()) return;
  notes.push_back(
      fmt::format("{} although the targets match: {} reads {} weight as several tensors, which are not quantized",
                  stays(setup.model.traced.graph, left, "linear", "linears"), setup.target->engines(),
                  left.size() > 1 ? "each" : "its"));
}

void add_lost_caches(const RunSetup& setup, Notes& notes) {
  const auto& stored = setup.model.quantized_attentions;
  if (stored.empty() || !setup.assignments.attentions.empty()) return;
  const char* why = setup.target->holds_activation_scales()
                        ? "the recipe changes values that its scales were measured on; write kv_cache_scheme to "
                          "measure them again"
                        : "the format has no place for its scales";
  notes.push_back(fmt::format("the source's quantized cache of keys and values is not in the result ({}{}): {}",
                              stored.begin()->first, stored.size() > 1 ? ", ..." : "", why));
}

void add_layer_experts(const RunSetup& setup, Notes& notes) {
  if (model::has_layer_experts(setup.model.checkpoint->config()))
    notes.push_back(
        "layers have different numbers of experts, so that vLLM, transformers and llama.cpp cannot load the result; "
        "REAPPruningModifier without 'uniform: false' keeps equally many in every layer");
}

/// What engines do otherwise with a head or embeddings that the run changes.
void add_vocabulary_gaps(const RunSetup& setup, Notes& notes) {
  const Json& config = setup.model.checkpoint->config();
  const bool unties = setup.model.traced.tied_head && unties_head(setup.model, setup.assignments);
  const bool embeddings = compressed_parts(setup.model, setup.assignments).embeddings;
  std::set<std::string> said;
  for (const Json* part : {&config, json_has(config, "text_config") ? &config["text_config"] : nullptr})
    if (part != nullptr)
      for (std::string& gap : setup.target->vocabulary_gaps(
               json_get_or<std::string>(*part, "model_type", "config.json", ""), unties, embeddings))
        if (said.insert(gap).second) notes.push_back(std::move(gap));
}

}  // namespace

std::vector<std::string> recipe_notes(const OneshotOptions& options, const RunSetup& setup) {
  const std::vector<UnmatchedEntry> unmatched = unmatched_entries(setup.model, setup.modifiers);
  Notes notes;
  for (const auto& modifier : setup.modifiers)
    if (std::string note = modifier->note(); !note.empty()) notes.push_back(std::move(note));
  add_unused_arguments(setup.modifiers, notes);
  const std::set<std::string> noted = add_unused_groups(setup, unmatched, notes);
  add_unmatched(options, unmatched, noted, notes);
  add_replaced_default(options, setup, notes);
  add_left_routers(setup, notes);
  add_left_divided(setup, notes);
  add_lost_caches(setup, notes);
  add_layer_experts(setup, notes);
  add_vocabulary_gaps(setup, notes);
  return notes;
}

}  // namespace layerpress::setup
