#include "layerpress/setup/run_setup.h"

#include <ATen/ATen.h>
#include <ATen/detail/CUDAHooksInterface.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "layerpress/base/system/machine.h"
#include "layerpress/base/text.h"
#include "layerpress/checkpoint/model_location.h"
#include "layerpress/gguf/architectures/architecture.h"
#include "layerpress/graph/facts/image_geometry.h"
#include "layerpress/recipe/gguf_recipe.h"
#include "layerpress/recipe/recipe_of_options.h"
#include "layerpress/recipe/standard_recipe.h"
#include "layerpress/residency/device_memory.h"
#include "layerpress/schedule/group_work.h"
#include "layerpress/setup/assignment/group_sizes.h"
#include "layerpress/setup/assignment/recipe_rewrites.h"
#include "layerpress/setup/assignment/rounded_inputs.h"
#include "layerpress/setup/assignment/statistic_checks.h"
#include "layerpress/setup/assignment/stored_parameters.h"
#include "layerpress/setup/assignment/transform_sites.h"
#include "layerpress/setup/opening/kept_weights.h"
#include "layerpress/setup/opening/rewriting.h"
#include "layerpress/setup/opening/stacked_experts.h"
#include "layerpress/setup/opening/tied_heads.h"
#include "layerpress/setup/result_target.h"

namespace layerpress::setup {
namespace {

/// LLM Compressor's name for a sequential run.
constexpr const char* kIndependent = "independent";

std::vector<std::string> pipeline_names() {
  std::vector<std::string> names;
  for (const schedule::Pipeline& pipeline : schedule::kPipelines) names.emplace_back(pipeline.name);
  names.emplace_back(kIndependent);
  return names;
}

const schedule::Pipeline* choose_pipeline(const OneshotOptions& options, const Modifiers& modifiers) {
  const std::string& asked = options.pipeline;
  const std::string use = data_use(options, modifiers);
  if (asked.empty()) return schedule::pipeline_named(use.empty() ? "datafree" : "sequential");
  const schedule::Pipeline* pipeline = schedule::pipeline_named(asked == kIndependent ? "sequential" : asked);
  if (pipeline == nullptr)
    throw UsageError("[options] --pipeline: unknown value '{}'; {}", asked, nearest_or_all(asked, pipeline_names()));
  if (!use.empty() && !pipeline->takes_data)
    throw UsageError(
        "[options] --pipeline {}: calibration data is needed by {}; choose another pipeline, or what needs no data, "
        "such as the scheme FP8_DYNAMIC with rounding",
        asked, use);
  return pipeline;
}

/// kUnlimited if the available memory is unknown and no budget is given.
std::uint64_t host_budget(const std::string& asked) {
  if (!asked.empty()) return parse_bytes(asked, "--memory-budget");
  const std::uint64_t available = available_memory();
  return available == 0 ? kUnlimited : available + anonymous_bytes();
}

/// The original model runs beside the compressed one, batch by batch, and must process the same rows.
void check_propagation(const OneshotOptions& options, const RunSetup& setup) {
  if (!schedule::wants_original(setup.assignments)) return;
  if (!setup.pipeline->sees_all_results)
    throw UsageError(
        "[options] --pipeline {}: error propagation requires --pipeline sequential, because only there every input "
        "carries the error of all that was compressed before it",
        setup.pipeline->name);
  if (!options.moe_calibrate_all_experts &&
      std::any_of(setup.assignments.linears.begin(), setup.assignments.linears.end(), [&](const auto& entry) {
        const graph::Graph& graph = setup.model.traced.graph;
        return graph.values[graph.nodes[entry.first].output].rows == graph::Rows::kSelected;
      }))
    throw UsageError(
        "[options] --no-moe-calibrate-all-experts: error propagation requires all tokens in all experts, because the "
        "original and the compressed model route tokens differently; leave it out, or choose --quality balanced");
}

/// By default, enough for the scales of the largest groups of columns.
std::int64_t least_expert_tokens(std::int64_t asked, bool all_experts, const RunSetup& setup) {
  if (asked < 0) throw UsageError("[options] --min-tokens-per-expert: {} is negative", asked);
  if (asked > 0 && all_experts)
    throw UsageError(
        "[options] --min-tokens-per-expert: all tokens go to all experts; add --no-moe-calibrate-all-experts, or leave "
        "it out");
  if (asked > 0) return asked;
  std::int64_t least = 256;
  for (const auto& [node, assignment] : setup.assignments.linears)
    if (setup.model.traced.graph.values[setup.model.traced.graph.nodes[node].output].rows == graph::Rows::kSelected &&
        assignment.scheme->weights)
      least = std::max(least, 4 * assignment.scheme->weights->group_size.value_or(0));
  return least;
}

/// Each rank of a machine computes on its own device.
void choose_own_device(const OneshotOptions& options, const dist::Group& group, at::Device& device) {
  if (!device.is_cuda() || group.local_size() == 1) return;
  if (options.device.find(':') != std::string::npos)
    throw UsageError("[options] --device {}: {} ranks on this machine need one device each; write --device cuda",
                     options.device, group.local_size());
  device.set_index(static_cast<at::DeviceIndex>(group.local_rank() % at::detail::getCUDAHooks().deviceCount()));
}

/// A trial runs a layer again with values that only a pipeline of one layer at a time has.
void check_trials(const RunSetup& setup) {
  if (setup.pipeline->layer_by_layer) return;
  for (const compression::PlannedTransform& planned : setup.assignments.transforms)
    if (planned.site.candidates > 0)
      throw RecipeError(
          "[recipe.check] {} requires --pipeline sequential or two_pass, because --pipeline {} does not keep the "
          "layer's values "
          "that it tries scales on",
          planned.transform->type(), setup.pipeline->name);
}

/// A file with the language model alone needs the vision part of a rotated model, which nothing writes.
void check_rotated_images(const graph::Graph& graph, const target::Target& target) {
  const graph::Node* merge = graph::merging_node(graph);
  if (merge == nullptr || target.has_config()) return;
  if (std::get<graph::MergeImages>(merge->operation).rotation.order > 0)
    throw RecipeError(
        "[recipe.check] R1 rotates the vision part, too, but a GGUF has the language model alone, and the original's "
        "vision part would not fit it; use rotations: [R2], or --quality best");
}

void check_loss_mask(const OneshotOptions& options, const RunSetup& setup) {
  if (!options.use_loss_mask || options.moe_calibrate_all_experts) return;
  const auto& values = setup.model.traced.graph.values;
  if (std::any_of(values.begin(), values.end(), [](const auto& value) { return value.rows == graph::Rows::kSelected; }))
    throw UsageError(
        "[options] --use-loss-mask: does not work with --no-moe-calibrate-all-experts yet; leave out one of them");
}

/// Of the standard recipe, the model decides whether the cache can be quantized.
recipe::Recipe recipe_for(const OneshotOptions& options) {
  if (!options.recipe.empty() || !recipe::is_standard_recipe(options.scheme)) return recipe::recipe_of(options);
  const Json config = options.model_in_memory ? Json(options.model_in_memory->config) : config_of(options.model);
  const bool latent = json_has(config, "kv_lora_rank") ||
                      (json_has(config, "text_config") && json_has(config["text_config"], "kv_lora_rank"));
  return recipe::recipe_of(options, /*caches_heads=*/!latent);
}

/// Without `modifiers`, they follow from the recipe and the model.
RunSetup set_up(const OneshotOptions& options, recipe::Recipe recipe, std::optional<Modifiers> modifiers,
                const dist::Group& group, const RunControl& control, const Decide& decide, Json decision) {
  RunSetup setup;
  setup.decision = std::move(decision);
  setup.ranks = group.size();
  setup.threads = set_threads(options.threads != 0 ? options.threads : group.cores());
  setup.recipe = std::move(recipe);
  setup.place = parse_activation_place(options.sequential_offload_device);
  setup.budget = host_budget(options.memory_budget);
  if (setup.budget != kUnlimited) setup.budget /= static_cast<std::uint64_t>(group.local_size());
  setup.device_budget = options.device_memory_budget.empty()
                            ? kUnlimited
                            : parse_bytes(options.device_memory_budget, "--device-memory-budget");
  if (recipe::asks_for_gguf(options) && !options.model_in_memory)
    gguf::architecture_for(config_of(options.model));  // refuses a model before its graph is made
  setup.model =
      open_model(options.model,
                 {options.moe_calibrate_all_experts ? ExpertTokens::kAll : ExpertTokens::kRouted, options.model_graph,
                  options.trust_remote_code, options.device, options.dtype, options.model_in_memory},
                 control);
  if (options.model_in_memory && group.size() > 1)
    throw UsageError("[oneshot] a model in memory cannot be divided among ranks; name its folder instead");
  const std::shared_ptr<const gguf::ImportanceFile> importance = importance_file(options);
  setup.target = make_target(options, setup.recipe, setup.model, importance.get());
  if (!setup.target->has_config() && group.local_size() < group.size())
    throw UsageError(
        "[options] --output {}: ranks of several machines cannot write one file; run all ranks on one machine",
        options.output);
  const auto use_recipe = [&] {
    setup.modifiers = make_modifiers(
        with_block_types(setup.recipe, setup.model, recipe::asks_for_gguf(options), importance != nullptr));
  };
  if (modifiers)
    setup.modifiers = std::move(*modifiers);
  else
    use_recipe();
  setup.pipeline = choose_pipeline(options, setup.modifiers);
  if (!options.dataset.empty() && !setup.pipeline->takes_data && setup.decision.is_null() && group.is_first())
    control.message(LogLevel::kWarning, "[options] --dataset has no effect: nothing in this run takes data");
  setup.placement = choose_placement(options.device, options.dtype, setup.model.stored_dtype);
  choose_own_device(options, group, setup.placement.device);
  if (decide) {
    setup.recipe = decide(setup);
    use_recipe();
    setup.pipeline = choose_pipeline(options, setup.modifiers);  // what is decided takes no data
  }
  const bool has_fixed_graph = options.model_in_memory && !options.model_in_memory->graph.empty();
  const std::shared_ptr<const checkpoint::Checkpoint> before = setup.model.checkpoint;
  apply_rewrites(setup.modifiers, setup.model);
  if (has_fixed_graph) require_no_new_weights(*before, setup.model);
  check_rotated_images(setup.model.traced.graph, *setup.target);
  if (!setup.model.rewritten.empty())
    setup.target = make_target(options, setup.recipe, setup.model, importance.get());  // of the changed model
  setup.assignments = assign(setup.model, setup.modifiers, *setup.target);
  if (round_calibrated_inputs(setup.model, setup.assignments) > 0)
    setup.assignments = assign(setup.model, setup.modifiers, *setup.target);
  if (importance)
    setup.without_importance = take_importance(*importance, setup.model, setup.modifiers, setup.assignments);
  if (!options.imatrix.empty()) setup.measured_inputs = measure_inputs(setup.model, setup.assignments);
  check_group_sizes(options, setup.model, setup.modifiers, setup.assignments);
  if (has_fixed_graph) require_own_weights(setup.model, setup.assignments);
  setup.source = source_tensors(setup.model, setup.assignments, *setup.target);
  apply(setup.source.changes(), setup.model);
  if (!setup.target->keeps_ties()) apply(untied_embeddings(setup.model, setup.assignments), setup.model);
  keep_quantized_weights(setup.model, setup.assignments, *setup.target);
  keep_stacked_experts(setup.model, setup.assignments);
  check_propagation(options, setup);
  check_statistics(setup.model.traced.graph, setup.assignments);
  check_loss_mask(options, setup);
  check_trials(setup);
  setup.min_tokens_per_expert =
      least_expert_tokens(options.min_tokens_per_expert, options.moe_calibrate_all_experts, setup);
  setup.subgraphs = joined_for_transforms(
      setup.model.traced.graph,
      cut_model(setup.model.traced, options.sequential_targets, options.sequential_targets_per_subgraph),
      setup.assignments);
  check_common_parameters(setup.model.traced.graph, setup.subgraphs, setup.assignments);
  for (auto& [node, assignment] : setup.assignments.linears) assignment.device = setup.placement.device;
  if (setup.device_budget == kUnlimited) setup.device_budget = residency::free_device_bytes(setup.placement.device);
  return setup;
}

}  // namespace

std::string data_use(const OneshotOptions& options, const Modifiers& modifiers) {
  std::vector<std::string> uses;
  for (const auto& modifier : modifiers)
    if (modifier->needs_data()) uses.push_back(modifier->data_use());
  if (!options.imatrix.empty()) uses.emplace_back("--imatrix");
  return join(uses);
}

ActivationPlace parse_activation_place(const std::string& name) {
  if (name == "auto") return ActivationPlace::kAuto;
  if (name == "cpu") return ActivationPlace::kCpu;
  if (name == "disk") return ActivationPlace::kDisk;
  if (name == "none") return ActivationPlace::kNone;
  throw UsageError("[options] --sequential-offload-device: unknown value '{}'; {}", name,
                   nearest_or_all(name, {"auto", "cpu", "disk", "none"}));
}

RunSetup set_up(const OneshotOptions& options, const dist::Group& group, const RunControl& control,
                const Decide& decide, Json decision) {
  recipe::Recipe recipe = recipe_for(options);
  std::optional<Modifiers> modifiers;  // of a mixture, they follow from the model
  if (!recipe::names_mixture(recipe, recipe::asks_for_gguf(options))) modifiers = make_modifiers(recipe);
  return set_up(options, std::move(recipe), std::move(modifiers), group, control, decide, std::move(decision));
}

RunSetup set_up(const OneshotOptions& options, recipe::Recipe recipe, Modifiers modifiers, const dist::Group& group,
                const RunControl& control) {
  return set_up(options, std::move(recipe), std::move(modifiers), group, control, {}, nullptr);
}

}  // namespace layerpress::setup
