#include "layerpress/run/decisions/layer_sparsities.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "layerpress/graph/weight_matrix.h"
#include "layerpress/model/blocks/weight_names.h"
#include "layerpress/modifier/all_modifiers.h"
#include "layerpress/modifier/pruning/input_norms.h"
#include "layerpress/modifier/pruning/pruning.h"
#include "layerpress/run/compression/settled_setup.h"
#include "layerpress/run/decisions/measuring_run.h"
#include "layerpress/run/decisions/scheme_comparison.h"
#include "layerpress/setup/assignment/edited_linears.h"

namespace layerpress::run {
namespace {

constexpr std::int64_t kElementsAtOnce = 1 << 22;

bool lacks_sparsities(const recipe::ModifierEntry& entry) {
  return json_has(entry.arguments, modifier::kSparsityProfile) &&
         !json_has(entry.arguments, modifier::kLayerSparsities);
}

/// A linear and its weight's name.
struct LayerLinear {
  std::string module, weight;
};

/// The linears of the model's layers that the entry edits, by layer, in the model's order.
using Layers = std::vector<std::pair<std::string, std::vector<LayerLinear>>>;

Layers layers_of(const setup::RunSetup& setup, const recipe::ModifierEntry& entry) {
  const model::TracedModel& traced = setup.model.traced;
  const auto modifier = modifier::make_modifier(entry.type, entry.arguments, entry.where);
  const auto edits = dynamic_cast<const compression::EditingModifier&>(*modifier).edits_of(setup::modules_of(traced));
  const graph::Graph& graph = traced.graph;
  const quant::TargetList list(traced.default_sequential_targets, "layers");
  Layers layers;
  for (const graph::Module& module : graph.modules) {
    if (module.name.empty() ||
        !list.matches({module.name, {module.class_name}, model::other_names(traced, module.name)}))
      continue;
    std::vector<LayerLinear> own;
    for (const graph::Node& node : graph.nodes) {
      const std::string& name = graph.module_name(node);
      if (!graph::is_linear(node.operation) || !name.starts_with(module.name + ".") || !edits.contains(name)) continue;
      if (graph.values[node.output].rows == graph::Rows::kSelected)
        throw RecipeError(
            "[recipe.check] {}: {} counts the outliers of whole samples, but some tokens of a sample do not reach {}; "
            "leave out --no-moe-calibrate-all-experts",
            entry.where, modifier::kSparsityProfile, name);
      own.push_back({name, graph::weight_matrix(node.operation)->weight});
    }
    if (!own.empty()) layers.emplace_back(module.name, std::move(own));
  }
  if (layers.empty())
    throw RecipeError(
        "[recipe.check] {}: {} requires layers, and none of the targets lies in one; give a list of sparsities, "
        "one for each target",
        entry.where, modifier::kSparsityProfile);
  return layers;
}

/// The norms of the inputs, by module, on all ranks.
using InputNorms = std::map<std::string, at::Tensor>;

/// Ranks have measured different linears. All norms travel at once.
void exchange(dist::Group& group, const setup::RunSetup& setup, InputNorms& norms) {
  std::vector<at::Tensor> own;
  std::vector<std::int64_t> sizes;
  const MeasuredLinears measured = linears_of(setup);
  for (const auto& [module, linear] : measured) {
    const auto found = norms.find(module);
    own.push_back(found != norms.end() ? found->second : at::zeros({linear.shape.columns}, at::kDouble));
    sizes.push_back(linear.shape.columns);
  }
  const at::Tensor all = at::cat(own);
  group.all_reduce(all);
  const std::vector<at::Tensor> parts = all.split_with_sizes(sizes);
  std::size_t place = 0;
  for (const auto& [module, linear] : measured) norms[module] = parts[place++];
}

InputNorms input_norms(Rank& rank, const setup::RunSetup& setup, const Layers& layers, const Calibration& calibration) {
  OneshotOptions options = rank.options;
  options.imatrix.clear();  // the run that follows writes it
  Rank own{options, rank.control, rank.group};
  std::set<std::string> modules;
  for (const auto& [layer, linears] : layers)
    for (const LayerLinear& linear : linears) modules.insert(linear.module);
  InputNorms norms;
  std::mutex mutex;
  setup::Modifiers modifiers;
  modifiers.push_back(
      std::make_unique<modifier::InputNorms>(modules, [&](const std::string& module, const at::Tensor& measured) {
        const std::lock_guard lock(mutex);
        norms[module] = measured;
      }));
  const Settled settled = settle(setup::set_up(options, setup.recipe, std::move(modifiers), rank.group, rank.control),
                                 options, rank.group, rank.control);
  const Measurement measurement = measure(own, *settled.setup, "measuring the outliers of each layer", calibration);
  rank.earlier_planned_bytes = std::max(rank.earlier_planned_bytes, measurement.planned_bytes);
  exchange(rank.group, *settled.setup, norms);
  return norms;
}

/// Calls `use` with the products |w| ‖x‖ of a linear, some rows at a time.
template <typename Function>
void for_products(const setup::RunSetup& setup, const LayerLinear& linear, const at::Tensor& norms, Function&& use) {
  const at::Tensor weight = setup.model.checkpoint->tensor(linear.weight);
  const std::int64_t step = std::max<std::int64_t>(1, kElementsAtOnce / weight.size(1));
  for (std::int64_t first = 0; first < weight.size(0); first += step)
    use(weight.narrow(0, first, std::min(step, weight.size(0) - first)).abs().to(at::kFloat).mul_(norms));
}

/// The share of a layer's products that are greater than `factor` times their mean. Linears without tokens do not count; nothing: none has any.
std::optional<double> outlier_share(const setup::RunSetup& setup, const std::vector<LayerLinear>& linears,
                                    const InputNorms& norms, double factor) {
  double sum = 0, count = 0, outliers = 0;
  const auto has_tokens = [&](const LayerLinear& linear) { return norms.at(linear.module).any().item<bool>(); };
  for (const LayerLinear& linear : linears) {
    if (!has_tokens(linear)) continue;
    for_products(setup, linear, norms.at(linear.module), [&](const at::Tensor& products) {
      sum += products.sum(at::kDouble).item<double>(), count += static_cast<double>(products.numel());
    });
  }
  const double threshold = factor * sum / count;
  for (const LayerLinear& linear : linears) {
    if (has_tokens(linear))
      for_products(setup, linear, norms.at(linear.module),
                   [&](const at::Tensor& products) { outliers += products.gt(threshold).sum().item<double>(); });
    setup.model.checkpoint->release(linear.weight);
  }
  return count > 0 ? std::optional(outliers / count) : std::nullopt;
}

/// Layers of which nothing is known are average ones.
std::vector<double> with_mean(const Json& shares) {
  double sum = 0, known = 0;
  for (const Json& share : shares)
    if (!share.is_null()) sum += share.get<double>(), ++known;
  std::vector<double> all;
  for (const Json& share : shares) all.push_back(share.is_null() ? sum / std::max(known, 1.0) : share.get<double>());
  return all;
}

OrderedJson measure_layers(Rank& rank, const setup::RunSetup& setup, const setup::OpenedModel&,
                           const recipe::ModifierEntry& entry, const Calibration& calibration,
                           output::MeasurementLog&) {
  const modifier::OutlierProfile profile = modifier::outlier_profile(Json(entry.arguments), entry.where).value();
  const Layers layers = layers_of(setup, entry);
  const InputNorms norms = input_norms(rank, setup, layers, calibration);
  Json shares = Json::array();
  if (rank.group.is_first())
    for (const auto& [layer, linears] : layers) {
      rank.control.step(shares.size(), layers.size(), "outliers of " + layer);
      const std::optional<double> share = outlier_share(setup, linears, norms, profile.factor);
      shares.push_back(share ? Json(*share) : Json());
    }
  const std::vector<double> sparsities = modifier::sparsities_of(
      profile, with_mean(Json::parse(rank.group.broadcast_text(shares.dump(), 0))), entry.where);
  OrderedJson chosen = OrderedJson::object();
  for (std::size_t i = 0; i < layers.size(); ++i) chosen[layers[i].first] = sparsities[i];
  return chosen;
}

}  // namespace

Decision sparsities_decision() {
  return {.argument = modifier::kLayerSparsities,
          .chosen = "the sparsities of layers",
          .is_open = lacks_sparsities,
          .measure = measure_layers};
}

}  // namespace layerpress::run
