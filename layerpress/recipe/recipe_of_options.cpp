#include "layerpress/recipe/recipe_of_options.h"

#include <algorithm>
#include <filesystem>
#include <optional>
#include <system_error>
#include <utility>
#include <vector>

#include "layerpress/base/text.h"
#include "layerpress/gguf/mixture.h"
#include "layerpress/quant/scheme.h"
#include "layerpress/quant/targets/matching.h"
#include "layerpress/recipe/gguf_recipe.h"
#include "layerpress/recipe/standard_recipe.h"

namespace layerpress::recipe {
namespace {

/// Refuses options that a recipe file replaces, because one of the two would be ignored silently.
void refuse_with_recipe_file(const OneshotOptions& options) {
  const OneshotOptions defaults;
  const auto refuse = [&](const std::string& option, bool differs) {
    if (differs || options.is_given(option))
      throw UsageError(
          "[options] --{} and --recipe: a recipe says all of this itself; write it there, or leave out one of the two",
          option);
  };
  refuse("algorithm", options.algorithm != defaults.algorithm);
  refuse("scheme", options.scheme != defaults.scheme);
  refuse("group-size", options.group_size != 0);
  refuse("observer", !options.observer.empty());
  refuse("targets", options.targets != defaults.targets);
  refuse("ignore", options.ignore != defaults.ignore);
}

quant::QuantizationScheme scheme_of(const OneshotOptions& options) {
  quant::QuantizationScheme scheme;
  try {
    scheme = quant::preset_scheme(options.scheme);
  } catch (const RecipeError& error) {
    const std::string text = error.what();  // its place is the option
    throw UsageError("[options] --scheme: {}", text.substr(text.find("] ") + 2));
  }
  check_group_size(options);
  if (options.group_size == 0) return scheme;
  if (!scheme.weights || scheme.weights->strategy != quant::Strategy::kGroup)
    throw UsageError("[options] --group-size: scheme {} has no groups", options.scheme);
  scheme.weights->group_size = options.group_size;
  return scheme;
}

/// Sets the observer where none is given.
void take_observer(OrderedJson& arguments, const char* observer) {
  if (json_has(arguments, "weight_observer") || json_has(arguments, "observer")) return;
  if (!json_has(arguments, "config_groups")) {
    arguments["weight_observer"] = observer;
    return;
  }
  OrderedJson& groups = arguments["config_groups"];
  if (!groups.is_object()) return;  // the modifier reports the error
  for (OrderedJson& group : groups)
    if (group.is_object() && group.contains("weights") && group["weights"].is_object() &&
        !json_has(group["weights"], "observer"))
      group["weights"]["observer"] = observer;
}

/// The schemes that a quantizer has, as far as they can be read; the modifier reports errors.
std::vector<quant::QuantizationScheme> schemes_of(const OrderedJson& arguments) {
  std::vector<quant::QuantizationScheme> found;
  const auto add = [&](const Json& scheme) {
    try {
      found.push_back(scheme.is_string() ? quant::preset_scheme(scheme.get<std::string>())
                                         : quant::parse_quantization_scheme(scheme, "quality"));
    } catch (const Error&) {
    }
  };
  if (json_has(arguments, "scheme")) add(arguments["scheme"]);
  if (json_has(arguments, "config_groups") && arguments["config_groups"].is_object())
    for (const OrderedJson& group : arguments["config_groups"]) add(group);
  return found;
}

/// Whether a recipe's entry leaves the head dense. An imported model's head has this name, too. The modifier reports errors.
bool ignores_head(const OrderedJson& arguments) {
  if (!arguments.is_object() || !arguments.contains("ignore")) return false;
  const OrderedJson& ignored = arguments["ignore"];
  std::vector<std::string> names;
  for (const OrderedJson& name : ignored.is_array() ? ignored : OrderedJson::array({ignored}))
    if (name.is_string()) names.push_back(name.get<std::string>());
  try {
    return quant::TargetList(names, "quality").matches({"lm_head", {}});
  } catch (const RecipeError&) {
    return false;
  }
}

/// What --quality max begins with, as it was measured (docs/quality.md): rotations of the whole residual stream; with MXFP4 inside of the
/// blocks that share a scale; with NVFP4 none, because its small groups profit from having outliers in few of them. Where inputs
/// have 4 bits, too, outliers of channels do most of the damage: smoothing, and rotations of the values' heads, which it does not reach.
/// A head that rotations untie, and that stays dense, makes up for a part of the error before it.
std::vector<ModifierEntry> preparations(const Recipe& recipe) {
  const auto entry = [](const char* type, const OrderedJson& arguments) {
    return ModifierEntry{type, arguments, fmt::format("{} of --quality max (--quality best does without it)", type)};
  };
  OrderedJson rotation = {{"where_possible", true}};
  bool is_small = false, keeps_head = false;
  for (const ModifierEntry& modifier : recipe.modifiers) {
    keeps_head = keeps_head || ignores_head(modifier.arguments);
    for (const quant::QuantizationScheme& scheme : schemes_of(modifier.arguments)) {
      if (!scheme.weights || !scheme.weights->is_float(4)) continue;
      const bool small = scheme.weights->strategy == quant::Strategy::kTensorGroup;
      if (scheme.input_activations && scheme.input_activations->is_float(4))
        return {entry("SpinQuantModifier", {{"rotations", {"R2"}}, {"where_possible", true}}),
                entry("SmoothQuantModifier", {{"smoothing_strength", small ? 0.7 : 0.9}})};
      is_small = is_small || small;
      if (scheme.weights->group_size) rotation["transform_block_size"] = *scheme.weights->group_size;
    }
  }
  if (is_small) return {};
  std::vector<ModifierEntry> first = {entry("SpinQuantModifier", rotation)};
  if (keeps_head) first.push_back(entry("ErrorPropagationModifier", {{"unties", false}}));
  return first;
}

/// Moves what the first modifier that prunes will prune, further than GPTQModifier does, because pruning leaves greater errors (docs/quality.md);
/// nullopt if none prunes.
std::optional<ModifierEntry> moving_before_pruning(const Recipe& recipe, const std::string& quality) {
  for (const ModifierEntry& entry : recipe.modifiers) {
    if (entry.type != "SparseGPTModifier" && entry.type != "WandaPruningModifier") continue;
    OrderedJson arguments = {{"targets", "Linear"}, {"strength", 1.0}, {"damping", 0.1}, {"residual", 0.7}};
    for (const char* key : {"targets", "ignore"})
      if (json_has(entry.arguments, key)) arguments[key] = entry.arguments[key];
    return ModifierEntry{
        "ErrorPropagationModifier", arguments,
        fmt::format("ErrorPropagationModifier of --quality {} (--quality balanced does without it)", quality)};
  }
  return std::nullopt;
}

/// Fills in the arguments that the quality implies; explicit arguments take precedence.
Recipe with_quality(Recipe recipe, const OneshotOptions& options) {
  const std::string& quality = options.quality;
  if (quality != "fast" && quality != "balanced" && quality != "best" && quality != "max")
    throw UsageError("[options] --quality: unknown value '{}'; {}", quality,
                     nearest_or_all(quality, {"fast", "balanced", "best", "max"}));
  const bool moves = quality == "best" || quality == "max";
  bool propagates = false, rotates = false, smooths = false;
  for (ModifierEntry& entry : recipe.modifiers) {
    propagates = propagates || entry.type == "AutoRoundModifier";
    rotates = rotates || entry.type == "SpinQuantModifier";
    smooths = smooths || entry.type == "SmoothQuantModifier";
    const bool gptq = entry.type == "GPTQModifier";
    if (!entry.arguments.is_object()) continue;  // the modifier reports the error
    if (quality == "fast" && (gptq || entry.type == "QuantizationModifier")) take_observer(entry.arguments, "minmax");
    if (moves && gptq) {
      take_observer(entry.arguments, "gptq");
      if (!entry.arguments.contains("error_propagation")) entry.arguments["error_propagation"] = true;
      // The blocks of GGUF files have no codes that could be improved so.
      if (quality == "max" && !asks_for_gguf(options) && !entry.arguments.contains("coordinate_descent"))
        entry.arguments["coordinate_descent"] = true;
      propagates = true;
    }
  }
  if (moves && !propagates) {
    std::optional<ModifierEntry> moving = moving_before_pruning(recipe, quality);
    if (!moving)
      throw UsageError(
          "[options] --quality {} requires GPTQ and calibration data; use --algorithm gptq or --quality balanced",
          quality);
    recipe.modifiers.insert(recipe.modifiers.begin(), std::move(*moving));
    return recipe;
  }
  if (quality == "max" && !rotates) {
    std::vector<ModifierEntry> first = preparations(recipe);
    if (smooths) std::erase_if(first, [](const ModifierEntry& entry) { return entry.type == "SmoothQuantModifier"; });
    recipe.modifiers.insert(recipe.modifiers.begin(), first.begin(), first.end());
  }
  return recipe;
}

OrderedJson standard_arguments_of(const OneshotOptions& options, bool caches_heads) {
  if (options.group_size != 0)
    throw UsageError("[options] --group-size: scheme {} fixes its group sizes; leave --group-size out", options.scheme);
  if (options.targets != OneshotOptions().targets)
    throw UsageError(
        "[options] --targets: scheme {} chooses its own targets; leave --targets out, and name modules to leave with "
        "--ignore",
        options.scheme);
  OrderedJson arguments = standard_arguments(options.ignore, caches_heads);
  if (!options.observer.empty()) arguments["weight_observer"] = options.observer;
  return arguments;
}

/// The recipe that an option names or is.
Recipe named_recipe(const std::string& recipe) {
  std::error_code failure;
  const bool is_text = recipe.find('\n') != std::string::npos || recipe.starts_with('{') ||
                       (recipe.find(": ") != std::string::npos && !std::filesystem::is_regular_file(recipe, failure));
  return is_text ? parse_recipe(recipe, "recipe") : read_recipe_file(recipe);
}

/// One word, or several.
std::vector<std::string> words_in(const Json& value, const std::string& where) {
  std::vector<std::string> words;
  for (const Json& word : value.is_array() ? value : Json::array({value})) {
    if (!word.is_string()) throw RecipeError("[recipe.modifier] {} must be a word or a list of words", where);
    words.push_back(word.get<std::string>());
  }
  return words;
}

Recipe recipe_without_quality(const OneshotOptions& options, bool caches_heads) {
  if (!options.recipe.empty()) {
    refuse_with_recipe_file(options);
    return named_recipe(options.recipe);
  }
  ModifierEntry entry;
  // An importance file takes the place of data, and floats profit from none.
  const bool needs_none =
      !options.from_imatrix.empty() || (asks_for_gguf(options) && gguf::is_float_mixture(upper_case(options.scheme)));
  if (needs_none && options.algorithm == OneshotOptions().algorithm && !options.is_given("algorithm"))
    entry.type = "QuantizationModifier";
  else if (options.algorithm == "gptq")
    entry.type = "GPTQModifier";
  else if (options.algorithm == "rtn")
    entry.type = "QuantizationModifier";
  else
    throw UsageError("[options] --algorithm: unknown value '{}'; {}", options.algorithm,
                     nearest_or_all(options.algorithm, {"gptq", "rtn"}));
  entry.where = "options";
  if (asks_for_gguf(options)) {
    entry.arguments = gguf_arguments(options);
    return {{std::move(entry)}};
  }
  if (is_standard_recipe(options.scheme)) {
    entry.arguments = standard_arguments_of(options, caches_heads);
    return {{std::move(entry)}};
  }
  entry.arguments["ignore"] = options.ignore;
  if (!options.observer.empty()) entry.arguments["weight_observer"] = options.observer;
  if (options.group_size == 0) {
    (void)scheme_of(options);
    entry.arguments["scheme"] = options.scheme;
    entry.arguments["targets"] = options.targets;
  } else {
    const quant::QuantizationScheme scheme = scheme_of(options);
    Json group = {{"targets", options.targets}, {"weights", quant::to_json(*scheme.weights)}};
    if (scheme.input_activations) group["input_activations"] = quant::to_json(*scheme.input_activations);
    entry.arguments["config_groups"]["group_0"] = group;
  }
  return {{std::move(entry)}};
}

}  // namespace

Recipe recipe_of(const OneshotOptions& options, bool caches_heads) {
  Recipe recipe = with_quality(recipe_without_quality(options, caches_heads), options);
  // AutoRound's own scripts leave out tokens that moving weights requires.
  for (ModifierEntry& entry : recipe.modifiers)
    if (entry.type == "AutoRoundModifier" && !options.moe_calibrate_all_experts && entry.arguments.is_object() &&
        !entry.arguments.contains("error_propagation"))
      entry.arguments["error_propagation"] = false;
  return recipe;
}

OneshotOptions with_mixed_precision(OneshotOptions options) {
  const bool chooses = !options.schemes.empty() || options.is_given("target-bits") || !options.target_size.empty();
  if (options.recipe.empty() || chooses) return options;  // with both, the choice refuses the recipe
  const Recipe recipe = named_recipe(options.recipe);
  const auto entry = std::find_if(recipe.modifiers.begin(), recipe.modifiers.end(), [](const ModifierEntry& modifier) {
    return modifier.type == "MixedPrecisionModifier";
  });
  if (entry == recipe.modifiers.end()) return options;
  const std::string& where = entry->where;
  if (recipe.modifiers.size() > 1)
    throw RecipeError("[recipe.modifier] {}: it gives every linear its scheme; leave out the other modifiers", where);
  refuse_with_recipe_file(options);
  const Json arguments(entry->arguments);
  if (!arguments.is_object()) throw RecipeError("[recipe.modifier] {}: expected a mapping of arguments", where);
  for (const auto& [key, value] : arguments.items()) {
    const std::string place = fmt::format("{}.{}", where, key);
    std::string option = key;
    std::replace(option.begin(), option.end(), '_', '-');
    if (key == "target_bits")
      options.target_bits = json_get<double>(arguments, "target_bits", where);
    else if (key == "target_size")
      options.target_size = json_get<std::string>(arguments, "target_size", where);
    else if (key == "group_size")
      options.group_size = json_get<std::int64_t>(arguments, "group_size", where);
    else if (key == "algorithm")
      options.algorithm = json_get<std::string>(arguments, "algorithm", where);
    else if (key == "schemes")
      options.schemes = words_in(value, place);
    else if (key == "targets")
      options.targets = words_in(value, place);
    else if (key == "ignore")
      options.ignore = words_in(value, place);
    else
      throw RecipeError("[recipe.modifier] {}: unknown argument '{}'; {}", where, key,
                        nearest_or_all(key, {"target_bits", "target_size", "schemes", "targets", "ignore", "group_size",
                                             "algorithm"}));
    options.given.push_back(option);
  }
  options.recipe.clear();
  std::erase(options.given, "recipe");
  return options;
}

void check_group_size(const OneshotOptions& options) {
  if (options.group_size < 0 || (options.group_size == 0 && options.is_given("group-size")))
    throw UsageError("[options] --group-size: must be positive, is {}", options.group_size);
}

}  // namespace layerpress::recipe
