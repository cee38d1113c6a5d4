// The arguments of quantizing modifiers.
#include <utility>

#include "layerpress/modifier/quantizing/quantizing_modifier.h"
#include "layerpress/quant/rounding/value_parameters.h"
#include "layerpress/quant/weight_numbers.h"

namespace layerpress::modifier {
namespace {

/// The observers that the modifier's own arguments name.
struct NamedObservers {
  std::optional<std::string> weights, input;
};

NamedObservers named_observers(const Json& arguments, const std::string& where) {
  if (json_has(arguments, "output_observer"))
    throw RecipeError("[recipe.modifier] {}: 'output_observer' is not implemented; outputs are not quantized", where);
  NamedObservers named;
  if (json_has(arguments, "weight_observer"))
    named.weights = json_get<std::string>(arguments, "weight_observer", where);
  if (json_has(arguments, "input_observer")) named.input = json_get<std::string>(arguments, "input_observer", where);
  if (!json_has(arguments, "observer")) return named;
  const Json& observer = arguments["observer"];
  if (named.weights || named.input)
    throw RecipeError(
        "[recipe.modifier] {}: give either 'observer' or 'weight_observer' and 'input_observer', not both", where);
  if (observer.is_string()) return {observer.get<std::string>(), std::nullopt};
  if (!observer.is_object())
    throw RecipeError("[recipe.modifier] {}: 'observer' must be a mapping such as {{weights: mse}}", where);
  for (const auto& [key, value] : observer.items()) {
    if (key != "weights" && key != "input")
      throw RecipeError(
          "[recipe.modifier] {}: observer for '{}' is not implemented yet; only 'weights' and 'input' are", where, key);
    if (!value.is_string()) throw RecipeError("[recipe.modifier] {}: observer.{} must be a name", where, key);
    (key == "weights" ? named.weights : named.input) = value.get<std::string>();
  }
  return named;
}

/// LLM Compressor's default is minmax, which its configuration does not name.
quant::InputObserverSettings attention_observer(const quant::QuantizationArgs& args, const std::string& where) {
  return quant::parse_input_observer(args.observer.value_or("minmax"), args.observer_kwargs, where);
}

}  // namespace

const std::vector<Argument>& QuantizingModifier::shared_arguments() {
  static const std::vector<Argument> kArguments = {{"targets", "str | list[str] | None"},
                                                   {"ignore", "str | list[str] | None"},
                                                   {"scheme", "str | dict[str, Any] | None"},
                                                   {"config_groups", "dict[str, Any] | None"},
                                                   {"kv_cache_scheme", "dict[str, Any] | None"},
                                                   {"weight_observer", "str | None"},
                                                   {"input_observer", "str | None"},
                                                   {"output_observer", "str | None"},
                                                   {"observer", "str | dict[str, str] | None"},
                                                   {"bypass_divisibility_checks", "bool"}};
  return kArguments;
}

QuantizingModifier::QuantizingModifier(const OrderedJson& arguments, const std::string& where,
                                       const std::vector<Argument>& known,
                                       std::optional<quant::Observer> default_observer) {
  const Json plain(arguments);
  without_effect_ = check_arguments(plain, where, known);
  if (json_get_or<bool>(plain, "bypass_divisibility_checks", where, false))
    throw RecipeError(
        "[recipe.modifier] {}: bypass_divisibility_checks is not implemented, because no inference engine loads such "
        "weights; leave it out",
        where);
  NamedObservers named = named_observers(plain, where);
  named_observer_ = std::move(named.weights);
  named_input_observer_ = std::move(named.input);
  if (json_has(plain, "ignore")) ignore_entries_ = names_or_none_in(plain["ignore"], where + ".ignore");
  ignore_.emplace(ignore_entries_, where + ".ignore");
  read_kv_cache(plain, where);
  read_groups(arguments, where, default_observer);
  const auto targets_of = [](const auto& members) {
    std::vector<quant::GroupTargets::Group> groups;
    for (const auto& group : members) groups.push_back({group.scheme.targets, group.where});
    return groups;
  };
  targets_.emplace(targets_of(groups_));
  attention_targets_.emplace(targets_of(attention_groups_));
}

void QuantizingModifier::read_kv_cache(const Json& arguments, const std::string& where) {
  if (!json_has(arguments, "kv_cache_scheme")) return;
  const std::string place = where + ".kv_cache_scheme";
  kv_cache_.emplace();
  kv_cache_->args = quant::parse_quantization_args(arguments["kv_cache_scheme"], place);
  quant::require_supported_attention(kv_cache_->args, place);
  kv_cache_->observer = attention_observer(kv_cache_->args, place);
}

void QuantizingModifier::add_attention_group(const std::string& name, const std::string& where,
                                             quant::QuantizationScheme scheme) {
  quant::QuantizationArgs& args = *scheme.input_activations;
  quant::require_supported_attention(args, where + ".input_activations");
  if (named_input_observer_) args.observer = named_input_observer_;
  if (!args.observer) args.observer = "minmax";  // as LLM Compressor, which leaves it out in kv_cache_scheme
  const quant::InputObserverSettings observer = attention_observer(args, where + ".input_activations");
  if (scheme.format.empty()) scheme.format = quant::infer_format(scheme);
  attention_groups_.push_back({name, where, std::move(scheme), observer});
}

void QuantizingModifier::read_groups(const OrderedJson& arguments, const std::string& where,
                                     std::optional<quant::Observer> default_observer) {
  const bool has_scheme = json_has(arguments, "scheme"), has_groups = json_has(arguments, "config_groups");
  if (!has_scheme && !has_groups && kv_cache_) return;
  if (has_scheme == has_groups)
    throw RecipeError("[recipe.modifier] {}: give {} of 'scheme' and 'config_groups'", where,
                      has_scheme ? "only one" : "one");
  if (has_scheme && arguments["scheme"].is_string()) {
    const auto name = arguments["scheme"].get<std::string>();
    quant::QuantizationScheme scheme = quant::preset_scheme(name);
    scheme.targets = {"Linear"};
    if (json_has(arguments, "targets")) scheme.targets = names_or_none_in(arguments["targets"], where + ".targets");
    return add_group(name, fmt::format("{}, scheme {}", where, name), std::move(scheme), default_observer);
  }
  const OrderedJson& mapping = arguments[has_scheme ? "scheme" : "config_groups"];
  if (!mapping.is_object() || mapping.empty())
    throw RecipeError("[recipe.modifier] {}: '{}' must be a {}non-empty mapping", where,
                      has_scheme ? "scheme" : "config_groups", has_scheme ? "preset name or a " : "");
  if (has_scheme && json_has(mapping, "weights"))
    throw RecipeError(
        "[recipe.modifier] {}: 'scheme' has 'weights', but is a preset, or a mapping of presets to targets; a whole "
        "scheme is a group of config_groups, under a name such as group_0",
        where);
  for (const auto& [name, value] : mapping.items()) {
    const std::string group_where = fmt::format("{}.{}", where, name);
    quant::QuantizationScheme scheme =
        has_scheme ? quant::preset_scheme(name) : quant::parse_quantization_scheme(value, group_where);
    if (has_scheme) scheme.targets = names_or_none_in(value, fmt::format("{}.{}", where, name));
    if (!scheme.weights && scheme.input_activations && !scheme.output_activations)
      add_attention_group(name, group_where, std::move(scheme));
    else
      add_group(name, group_where, std::move(scheme), default_observer);
  }
}

void QuantizingModifier::add_group(const std::string& name, const std::string& where, quant::QuantizationScheme scheme,
                                   std::optional<quant::Observer> default_observer) {
  quant::require_supported(scheme, where);
  quant::QuantizationArgs& weights = *scheme.weights;
  quant::name_scale_dtype(weights);
  quant::ObserverSettings observer;
  if (named_observer_) weights.observer = named_observer_;
  if (weights.observer) {  // it stays as it is written
    observer = quant::observer_of_weights(weights, where);
  } else {
    observer.observer = default_observer.value_or(quant::observer_without_inputs(weights));
    weights.observer = quant::observer_name(observer.observer);
    if (!weights.observer_kwargs.empty()) observer = quant::observer_of_weights(weights, where);
  }
  quant::settle_signed_scales(scheme, observer, where);
  quant::InputObserverSettings input_observer;
  if (quant::has_stored_inputs(scheme)) {
    quant::QuantizationArgs& inputs = *scheme.input_activations;
    quant::name_scale_dtype(inputs);
    if (named_input_observer_) inputs.observer = named_input_observer_;
    if (!inputs.observer) inputs.observer = "minmax";  // as LLM Compressor
    input_observer =
        quant::parse_input_observer(*inputs.observer, inputs.observer_kwargs, where + ".input_activations");
    if (quant::has_global_scale(inputs) && input_observer.observer == quant::InputObserver::kMovingError)
      throw RecipeError(
          "[recipe.observer] {}.input_activations: observer 'mse' is not implemented for the global scale of NVFP4's "
          "inputs; static_minmax and minmax are",
          where);
  }
  if (scheme.format.empty()) scheme.format = quant::infer_format(scheme);
  groups_.push_back({name, where, std::move(scheme), observer, input_observer});
}

void QuantizingModifier::set_actorder(
    const std::function<std::optional<std::string>(const std::optional<std::string>& own, const std::string& where)>&
        change) {
  for (Group& group : groups_) {
    std::optional<std::string>& own = group.scheme.weights->actorder;
    own = change(own, group.where);
  }
}

}  // namespace layerpress::modifier
