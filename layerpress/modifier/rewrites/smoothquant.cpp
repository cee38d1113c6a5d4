#include <ATen/ATen.h>

#include <algorithm>
#include <optional>
#include <set>
#include <utility>

#include "layerpress/base/text.h"
#include "layerpress/compression/statistics/minimum_maximum.h"
#include "layerpress/compression/transform.h"
#include "layerpress/graph/facts/expert_layers.h"
#include "layerpress/modifier/arguments/argument.h"
#include "layerpress/modifier/rewrites/scale_mappings.h"
#include "layerpress/quant/targets/matching.h"

namespace layerpress::modifier {
namespace {

using compression::TransformSite;

constexpr double kLeastScale = 1e-5;

/// The places that SmoothQuant uses if the recipe has no mappings.
class UsualPlaces {
 public:
  explicit UsualPlaces(const graph::Graph& graph) : graph_(graph), consumers_(graph.consumers()) {
    for (const graph::Node& node : graph.nodes) {
      if (std::holds_alternative<graph::Route>(node.operation)) has_experts_ = true;
      if (std::holds_alternative<graph::Attention>(node.operation)) attentions_.insert(node.module);
    }
    for (const graph::ExpertLayer& layer : graph::expert_layers(graph))
      for (const graph::ExpertLayer::Member& expert : layer.experts)
        of_experts_.insert(expert.weights.begin(), expert.weights.end());
  }

  bool has(const graph::ScaleAbsorber& place) const {
    const graph::Node& source = graph_.nodes[place.source];
    const bool is_norm = std::holds_alternative<graph::RmsNorm>(source.operation) ||
                         std::holds_alternative<graph::LayerNorm>(source.operation);
    // A norm of the residual stream: other nodes read its input, too.
    if (!is_norm || consumers_[source.inputs[0]].size() < 2) return false;
    return std::all_of(place.readers.begin(), place.readers.end(), [&](const graph::ScaleReader& reader) {
      return of_experts_.count(reader.weight) == 0 &&
             (!has_experts_ || attentions_.count(graph_.modules[graph_.nodes[reader.node].module].parent) != 0);
    });
  }

 private:
  const graph::Graph& graph_;
  std::vector<std::vector<graph::NodeId>> consumers_;
  bool has_experts_ = false;
  std::set<graph::ModuleId> attentions_;  // in which an attention is computed
  std::set<std::string> of_experts_;      // weights
};

const std::vector<Argument> kSmoothQuantArguments = {
    {"smoothing_strength", "float"},   {"mappings", "list[Any] | None"}, {"ignore", "str | list[str] | None"},
    {"num_calibration_steps", "None"}, {"calibration_function", "None"}, {"algorithm", "str"}};

class SmoothQuantModifier : public compression::Transform {
 public:
  SmoothQuantModifier(const Json& arguments, const std::string& where, std::string type, const char* usual_algorithm)
      : where_(where), type_(std::move(type)) {
    without_effect_ = check_arguments(arguments, where, kSmoothQuantArguments);
    for (const char* key : {"num_calibration_steps", "calibration_function"})
      if (json_has(arguments, key))
        throw RecipeError(
            "[recipe.modifier] {}: {} is not implemented; all calibration samples are used, leave it null", where, key);
    strength_ = json_get_or<double>(arguments, "smoothing_strength", where, 0.5);
    if (!(strength_ >= 0 && strength_ <= 1))
      throw RecipeError("[recipe.modifier] {}: smoothing_strength {} is not between 0 and 1", where, strength_);
    const auto algorithm = json_get_or<std::string>(arguments, "algorithm", where, usual_algorithm);
    if (algorithm != "smoothquant" && algorithm != "log_equalization")
      throw RecipeError("[recipe.modifier] {}: unknown algorithm '{}'; choose from smoothquant, log_equalization",
                        where, algorithm);
    logarithmic_ = algorithm == "log_equalization";
    if (json_has(arguments, "ignore") && !(arguments["ignore"].is_array() && arguments["ignore"].empty()))
      ignore_.emplace(names_in(arguments["ignore"], where + ".ignore"), where + ".ignore");
    if (json_has(arguments, "mappings")) mappings_ = read_scale_mappings(arguments["mappings"], where);
  }

  std::string type() const override { return type_; }

  std::vector<TransformSite> sites(const graph::Graph& graph, const compression::SchemeOf&) const override {
    const std::vector<graph::ScaleAbsorber> places = graph::scale_absorbers(graph);
    std::vector<TransformSite> sites;
    for (graph::NodeId n = 0; ignore_ && n < static_cast<graph::NodeId>(graph.nodes.size()); ++n)
      if (!graph::weights_of(graph.nodes[n].operation).empty())
        (void)is_ignored(module_of(graph, n));  // for unmatched_entries
    if (mappings_.empty()) {
      const UsualPlaces usual(graph);
      for (const graph::ScaleAbsorber& place : places)
        if (usual.has(place)) add(graph, place, nullptr, sites);
      if (sites.empty())
        throw RecipeError(
            "[recipe.check] {}: the model has no norms before linears that could be smoothed; write mappings, such as "
            "[[[\"re:.*down_proj\"], \"re:.*up_proj\"]]",
            where_);
    }
    for (const ScaleMapping& mapping : mappings_) {
      require_modules(graph, mapping);
      const std::size_t before = sites.size();
      bool ignored = false;
      for (const graph::ScaleAbsorber& place : places)
        if (mapping.smooth.matches(module_of(graph, place.source)))
          ignored = !add(graph, place, &mapping, sites) || ignored;
      refuse_impossible(graph, places, mapping);
      if (sites.size() == before && !ignored)
        throw RecipeError(
            "[recipe.check] {}: its balance layers do not read the smooth layer in a way that allows scaling (values "
            "of grouped heads cannot be scaled, for example); correct or remove it",
            mapping.where);
    }
    return sites;
  }

  std::vector<ListEntry> unmatched_entries() const override {
    std::vector<ListEntry> entries = unmatched_in(mappings_);
    if (ignore_)
      for (const std::string& entry : ignore_->unmatched()) entries.push_back({"ignore", entry});
    return entries;
  }

  at::Tensor scale(const TransformSite& site, const compression::TransformInput& input) const override {
    const graph::ValueId value = input.graph.nodes[site.place.source].output;
    const at::Tensor figures = input.statistics(value).of<compression::MinimumMaximum>();
    const at::Tensor range = figures.select(0, 0) + figures.select(0, 1);
    at::Tensor scale;
    if (logarithmic_) {
      scale = range / at::log2(range + 2);
    } else {
      const at::Tensor weight = 2 * largest_weights(site, input, range);
      scale = at::where(weight.gt(0), range.pow(strength_) / weight.pow(1 - strength_), range);
    }
    // Without tokens there is no range.
    return at::where(at::isfinite(range), scale.clamp_min(kLeastScale), at::ones_like(scale));
  }

 private:
  bool is_ignored(const quant::ModuleName& module) const { return ignore_ && ignore_->matches(module); }

  /// Adds a place if `mapping` names one of its readers (null: all). False if the place is ignored.
  bool add(const graph::Graph& graph, const graph::ScaleAbsorber& place, const ScaleMapping* mapping,
           std::vector<TransformSite>& sites) const {
    TransformSite site{place, {}};
    bool ignored = is_ignored(module_of(graph, place.source));
    for (const graph::ScaleReader& reader : place.readers) {
      const quant::ModuleName module = module_of(graph, reader.node);
      if (mapping != nullptr && !mapping->balance.matches(module)) continue;
      site.balanced.push_back(reader.node);
      ignored = ignored && is_ignored(module);
    }
    if (site.balanced.empty()) return true;
    if (ignored) return false;
    site.statistics[graph.nodes[place.source].output] = {std::make_shared<compression::MinimumMaximum>()};
    sites.push_back(std::move(site));
    return true;
  }

  /// Throws if a smooth layer's output also has readers that cannot be balanced.
  static void refuse_impossible(const graph::Graph& graph, const std::vector<graph::ScaleAbsorber>& places,
                                const ScaleMapping& mapping) {
    std::set<graph::NodeId> possible;
    for (const graph::ScaleAbsorber& place : places) possible.insert(place.source);
    for (const graph::Node& reader : graph.nodes) {
      if (!std::holds_alternative<graph::Linear>(reader.operation)) continue;
      const graph::NodeId source = graph.values[reader.inputs[0]].producer;
      if (source < 0 || possible.count(source) != 0 || !mapping.smooth.matches(module_of(graph, source))) continue;
      const auto n = static_cast<graph::NodeId>(&reader - graph.nodes.data());
      if (mapping.balance.matches(module_of(graph, n)))
        throw RecipeError(
            "[recipe.check] {}: smoothing {} would change the model's outputs, because modules other than linears read "
            "it, too; remove the mapping",
            mapping.where, graph.module_name(graph.nodes[source]));
    }
  }

  /// The largest absolute weight of each output channel of the source, in the columns of the balance layers.
  static at::Tensor largest_weights(const TransformSite& site, const compression::TransformInput& input,
                                    const at::Tensor& like) {
    at::Tensor largest = at::zeros_like(like);
    for (const graph::ScaleReader& reader : site.place.readers) {
      if (!site.balances(reader)) continue;
      const at::Tensor weight = input.parameter(reader.weight);
      const at::Tensor columns = at::maximum(at::amax(weight, 0), at::amin(weight, 0).neg()).to(at::kFloat);
      for (const graph::ChannelRun& run : reader.columns) {
        at::Tensor own = largest.narrow(0, run.source, run.count);
        own.copy_(at::maximum(own, columns.narrow(0, run.first, run.count)));
      }
    }
    return largest;
  }

  std::string where_, type_;
  double strength_ = 0.5;
  bool logarithmic_ = false;
  std::optional<quant::TargetList> ignore_;
  std::vector<ScaleMapping> mappings_;
};

Kind kind_of(const char* type, const char* usual_algorithm) {
  const auto make_of = [=](const OrderedJson& arguments, const std::string& where) {
    return std::make_unique<SmoothQuantModifier>(arguments, where, type, usual_algorithm);
  };
  return {type, make_of, kSmoothQuantArguments};
}

}  // namespace

/// SmoothQuant (arXiv 2211.10438) makes activations easier to quantize. The output channels of a norm or a linear are divided
/// by a scale, and the columns of the linears that read them are multiplied by it. The model's outputs stay the same. Let a be the
/// range of a channel over all tokens (maximum - minimum), and w twice the largest absolute weight of the balance layers
/// in this channel. The scale is a^strength / w^(1 - strength), or a if w is 0, and at least 1e-5.
///
/// Arguments, with LLM Compressor's meanings: smoothing_strength 0.5; mappings null, or a list of [[balance layers],
/// smooth layer] with names and re: patterns; ignore null, or names: a mapping is skipped if all of its layers are
/// ignored; algorithm "smoothquant", or "log_equalization" (arXiv 2308.15987): a / log2(2 + a). num_calibration_steps and
/// calibration_function must be null.
///
/// Without mappings, it smooths the norms of the residual stream that only linears read: before q, k and v, and before gate
/// and up. In mixtures of experts it smooths only the norm before the attention, like LLM Compressor.
///
/// All linears that read a smoothed value are multiplied. The balance layers of a mapping are those whose weights determine the
/// scale. A mapping that would change the model's outputs is refused.
Kind smoothquant_modifier() { return kind_of("SmoothQuantModifier", "smoothquant"); }

/// The same with algorithm log_equalization unless the arguments name one: LLM Compressor's older name for it.
Kind logarithmic_equalization_modifier() { return kind_of("LogarithmicEqualizationModifier", "log_equalization"); }

}  // namespace layerpress::modifier
