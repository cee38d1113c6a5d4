#include "layerpress/rewrite/kept_experts.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <optional>
#include <set>
#include <string_view>
#include <utility>
#include <variant>

#include "layerpress/base/text.h"
#include "layerpress/graph/facts/expert_layers.h"
#include "layerpress/model/blocks/decoder_config.h"

namespace layerpress::rewrite {
namespace {

using graph::ExpertLayer;

/// Of config.json or its text_config, the first of these numbers that is there.
std::optional<std::int64_t> number_of(const Json& config, const std::vector<std::string>& names) {
  for (const Json* place : {&config, json_has(config, "text_config") ? &config["text_config"] : nullptr})
    for (const std::string& name : names)
      if (place != nullptr && place->is_object() && json_has(*place, name.c_str()) &&
          (*place)[name].is_number_integer())
        return json_integer((*place)[name]);
  return std::nullopt;
}

/// The node that chooses experts by our operation; null if the model's own operators do.
const graph::Route* route_of(const graph::Graph& graph, const ExpertLayer& layer) {
  const graph::NodeId producer = graph.values.at(layer.routing).producer;
  return producer < 0 ? nullptr : std::get_if<graph::Route>(&graph.nodes[producer].operation);
}

/// Whether a list of the config or its number counts the experts of a layer.
bool counts_experts(const std::string& key, const Json& value, std::int64_t experts) {
  const auto has = [&](const char* part) { return key.find(part) != std::string::npos; };
  if (!has("experts") || has("_per_") || has("shared") || has("group")) return false;
  if (value.is_array())
    return !value.empty() && std::all_of(value.begin(), value.end(), [&](const Json& each) { return each == experts; });
  return value.is_number_integer() && value == experts;
}

/// Calls add(section, patch of the section) for config.json and its text_config.
template <typename Add>
void patch_sections(const Json& config, Json& patch, Add&& add) {
  add(config, patch);
  if (!json_has(config, "text_config") || !config["text_config"].is_object()) return;
  Json text = patch.value("text_config", Json::object());
  add(config["text_config"], text);
  if (!text.empty()) patch["text_config"] = std::move(text);
}

/// The patch of config.json that says how many experts there are; empty if nothing in it does. `of_layers`: where they differ, all
/// numbers; else null.
Json count_patch(const Json& config, std::int64_t experts, std::int64_t kept, const Json& of_layers) {
  Json patch = Json::object();
  patch_sections(config, patch, [&](const Json& section, Json& own) {
    for (const auto& [key, value] : section.items())
      if (counts_experts(key, value, experts))
        own[key] = value.is_array() ? Json(std::vector(value.size(), kept)) : Json(kept);
    if (!own.empty() && !of_layers.is_null())
      own[model::kExpertCountsKey] = {{"method", "prune"}, {"num_experts", of_layers}};
  });
  return patch;
}

/// 3 of "model.layers.3.mlp".
std::size_t layer_number(const std::string& name) {
  constexpr std::string_view kList = ".layers.";
  return std::stoul(name.substr(name.find(kList) + kList.size()));
}

/// What a layer for multi-token prediction is stored under, if the tensor is an expert's of one: "mtp.", "model.layers.61.".
std::string predicting_root(const std::string& name) {
  for (const std::string_view word : {"mtp.", ".layers."}) {
    std::size_t end = name.find(word);
    if (end == std::string::npos || (word == "mtp." && end > 0 && name[end - 1] != '.')) continue;
    end += word.size();
    if (word == ".layers.") end = name.find('.', end);
    return end == std::string::npos ? "" : name.substr(0, end + (word == ".layers." ? 1 : 0));
  }
  return "";
}

class Slicing {
 public:
  Slicing(const Model& model, const std::string& where)
      : model_(model), where_(where), layers_(graph::expert_layers(model.traced.graph)) {}

  ExpertMixture mixture() const {
    check();
    const ExpertLayer& first = layers_.front();
    const Json& config = model_.checkpoint->config();
    ExpertMixture mixture{.experts = static_cast<std::int64_t>(first.experts.size())};
    for (const ExpertLayer& layer : layers_) mixture.layers.push_back(layer.name);
    mixture.uniform_reason = "transformers exports its graph with one number of experts";
    if (const graph::Route* route = route_of(model_.traced.graph, first)) {
      mixture.top_k = route->top_k, mixture.groups = route->groups, mixture.top_groups = route->top_groups;
      mixture.least_of_group = route->group_score == "top2" ? 2 : 1;
      mixture.uniform_reason = route->groups == 1 ? "" : "its experts are chosen in groups of one size";
      return mixture;
    }
    mixture.top_k = number_of(config, {"num_experts_per_tok", "num_experts_per_token", "experts_per_token", "top_k",
                                       "moe_top_k", "moe_topk", "moe_k"})
                        .value_or(1);
    mixture.groups = number_of(config, {"n_group", "n_groups"}).value_or(1);
    mixture.top_groups = number_of(config, {"topk_group", "top_k_group"}).value_or(mixture.groups);
    return mixture;
  }

  Changes changes(const KeptExperts& kept) {
    check();
    const auto experts = static_cast<std::int64_t>(layers_.front().experts.size());
    std::vector<std::size_t> counts;
    for (const ExpertLayer& layer : layers_) counts.push_back(kept.at(layer.name).size());
    const auto [least, most] = std::minmax_element(counts.begin(), counts.end());
    changes_.is_traced_again = true;
    changes_.config = count_patch(model_.checkpoint->config(), experts, static_cast<std::int64_t>(*most),
                                  *least == *most ? Json() : counts_of_layers(kept));
    if (changes_.config.empty())
      refuse(fmt::format("no number of config.json counts the {} experts of a layer", experts));
    for (const ExpertLayer& layer : layers_) slice(layer, kept.at(layer.name));
    changes_.text = fmt::format("keeps {} of {} experts in each of {} layers",
                                *least == *most ? std::to_string(*most) : fmt::format("{} to {}", *least, *most),
                                experts, layers_.size());
    leave_out_predicting_layers();
    return std::move(changes_);
  }

 private:
  /// A number for each decoder layer, null for one without experts.
  Json counts_of_layers(const KeptExperts& kept) const {
    const auto layers = number_of(model_.checkpoint->config(), {"num_hidden_layers"}).value_or(0);
    Json counts = Json::array();
    counts.get_ref<Json::array_t&>().resize(static_cast<std::size_t>(layers));
    for (const ExpertLayer& layer : layers_) counts.at(layer_number(layer.name)) = kept.at(layer.name).size();
    return counts;
  }

  [[noreturn]] void refuse(const std::string& reason) const {
    throw RecipeError("[recipe.check] {}: {}, so that its experts cannot be removed", where_, reason);
  }

  void check() const {
    for (const std::string& name : model_.traced.left_out)
      if (name.find("expert") != std::string::npos) refuse(name + " is not a node of the model's graph");
    if (layers_.empty())
      throw RecipeError("[recipe.check] {}: the model has no mixture of experts; leave the modifier out", where_);
    for (const ExpertLayer& layer : layers_) {
      if (layer.experts.size() != layers_.front().experts.size())
        refuse(fmt::format("{} has {} experts and {} has {}", layers_.front().name, layers_.front().experts.size(),
                           layer.name, layer.experts.size()));
      const graph::Route* first = route_of(model_.traced.graph, layers_.front());
      const graph::Route* own = route_of(model_.traced.graph, layer);
      if (first != nullptr && own != nullptr && (first->top_k != own->top_k || first->groups != own->groups))
        refuse(layer.name + " chooses experts in another way than " + layers_.front().name);
    }
  }

  void slice(const ExpertLayer& layer, const std::vector<std::int64_t>& kept) {
    for (std::size_t place = 0; place < layer.experts.size(); ++place) {
      const std::vector<std::string>& names = layer.experts[place].weights;
      if (place >= kept.size()) {
        changes_.removed.insert(changes_.removed.end(), names.begin(), names.end());
        continue;
      }
      const auto& from = layer.experts.at(static_cast<std::size_t>(kept[place])).weights;
      for (std::size_t i = 0; i < names.size(); ++i) changes_.copies.push_back({names[i], from[i]});
    }
    slice_router(layer, kept);
  }

  void slice_router(const ExpertLayer& layer, const std::vector<std::int64_t>& kept) {
    const auto experts = static_cast<std::int64_t>(layer.experts.size());
    bool any = false;
    for (const graph::WeightUse& use : layer.router_weights(model_.traced.graph)) {
      const auto dimension = std::find(use.shape.begin(), use.shape.end(), experts);
      if (dimension == use.shape.end()) continue;
      if (std::count(use.shape.begin(), use.shape.end(), experts) > 1)
        refuse(fmt::format("{} has as many columns as there are experts", use.name));
      if (!sliced_.insert(use.name).second) refuse(fmt::format("several layers read {}", use.name));
      changes_.computed.push_back(rows_of(use, dimension - use.shape.begin(), kept));
      any = true;
    }
    if (!any) refuse(fmt::format("no weight of {} has a row for each expert", layer.name));
  }

  checkpoint::ComputedTensor rows_of(const graph::WeightUse& use, std::int64_t dimension,
                                     const std::vector<std::int64_t>& kept) const {
    const checkpoint::StoredTensor& stored = model_.checkpoint->spec(use.name);
    checkpoint::ComputedTensor rows{.spec = {use.name, stored.dtype, use.shape}, .parts = {use.name}, .compute = {}};
    rows.spec.shape[static_cast<std::size_t>(dimension)] = static_cast<std::int64_t>(kept.size());
    rows.compute = [checkpoint = model_.checkpoint, name = use.name, dimension, kept] {
      return checkpoint->tensor(name).index_select(dimension, at::tensor(kept, at::kLong)).contiguous();
    };
    if (model_.checkpoint->is_computed(use.name))
      rows.workspace_bytes = stored.nbytes() + model_.checkpoint->workspace_bytes(use.name);
    return rows;
  }

  /// Tensors that the graph does not read, but that have experts.
  void leave_out_predicting_layers() {
    const std::set<std::string> read = graph::weights_read(model_.traced.graph);
    std::set<std::string> roots;
    const std::vector<std::string> names = model_.checkpoint->names();
    for (const std::string& name : names) {
      if (read.count(name) != 0 || name.find(".experts.") == std::string::npos) continue;
      const std::string root = predicting_root(name);
      const auto inside = [&](const std::string& other) { return other.starts_with(root); };
      if (root.empty() || std::any_of(read.begin(), read.end(), inside))
        refuse(fmt::format("{} is an expert's tensor that the model's graph does not read", name));
      roots.insert(root);
    }
    for (const std::string& name : names)
      for (const std::string& root : roots)
        if (name.starts_with(root)) changes_.removed.push_back(name);
    if (roots.empty()) return;
    changes_.text += ", and leaves out the layers for multi-token prediction (" +
                     join(std::vector(roots.begin(), roots.end())) + "), whose experts have no figures";
    forget_predicting_layers();
  }

  void forget_predicting_layers() {
    patch_sections(model_.checkpoint->config(), changes_.config, [](const Json& section, Json& own) {
      for (const auto& [key, value] : section.items())
        if (value.is_number_integer() && key.find("layers") != std::string::npos &&
            (key.find("nextn") != std::string::npos || key.find("mtp") != std::string::npos))
          own[key] = 0;
    });
  }

  const Model& model_;
  const std::string& where_;
  const std::vector<ExpertLayer> layers_;
  std::set<std::string> sliced_;
  Changes changes_;
};

}  // namespace

ExpertMixture expert_mixture(const Model& model, const std::string& where) { return Slicing(model, where).mixture(); }

Changes keep_experts(const Model& model, const KeptExperts& kept, const std::string& where) {
  return Slicing(model, where).changes(kept);
}

}  // namespace layerpress::rewrite
