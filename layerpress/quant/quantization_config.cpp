#include "layerpress/quant/quantization_config.h"

#include <optional>
#include <set>

#include "layerpress/quant/container_format.h"
#include "layerpress/quant/targets/group_targets.h"

namespace layerpress::quant {
namespace {

constexpr const char* kMixedFormat = "mixed-precision";  // at the top, where groups differ

// The release of compressed-tensors whose layout is written; since 0.18, odd bit widths are packed densely.
constexpr const char* kLayoutVersion = "0.19.0";

Json optional_args(const std::optional<QuantizationArgs>& args) { return args ? to_json(*args) : Json(nullptr); }

Json group_to_json(const QuantizationScheme& scheme) {
  return Json{{"targets", scheme.targets},
              {"weights", optional_args(scheme.weights)},
              {"input_activations", optional_args(scheme.input_activations)},
              {"output_activations", optional_args(scheme.output_activations)},
              {"format", resolved_format(scheme)}};
}

std::string overall_format(const QuantizationConfig& config) {
  std::set<std::string> formats;
  for (const auto& [name, scheme] : config.groups) formats.insert(resolved_format(scheme));
  if (formats.size() > 1) formats.erase(kDenseFormat);  // groups without weights do not make it mixed
  if (formats.empty()) return kDenseFormat;
  return formats.size() == 1 ? *formats.begin() : kMixedFormat;
}

void require_header(const Json& object, const std::string& where) {
  if (!object.is_object()) throw CheckpointError("[quant.config] {}: quantization_config is not an object", where);
  const auto method = json_get<std::string>(object, "quant_method", where);
  if (method != "compressed-tensors")
    throw CheckpointError("[quant.config] {}: quant_method '{}' is not supported here; only compressed-tensors is",
                          where, method);
  // Early versions of compressed-tensors left "frozen" in the files that they had compressed.
  const auto status = json_get_or<std::string>(object, "quantization_status", where, "compressed");
  if (status != "compressed" && status != "frozen")
    throw CheckpointError("[quant.config] {}: quantization_status is '{}', not 'compressed'; save the model compressed",
                          where, status);
  const auto rewritten = [&](const char* key) {
    // They described models without sparsity as those with a format "dense".
    return object.contains(key) && !object[key].empty() &&
           !(object[key].is_object() && object[key].value("format", Json()) == kDenseFormat);
  };
  for (const char* key : {"sparsity_config", "transform_config"})
    if (rewritten(key))
      throw CheckpointError("[quant.config] {}: {} {} is not supported here; start from the model that it was made of",
                            where, key, shortened(object[key]));
}

/// Orders of columns that need an index for each are no longer written; the tensors weight_g_idx of a checkpoint have them.
Json without_column_order(Json group) {
  const Json::json_pointer place("/weights/actorder");
  if (group.is_object() && group.value("weights", Json()).is_object() && group.contains(place))
    if (Json& order = group[place]; order == "group" || order == "dynamic") order = nullptr;
  return group;
}

/// A group, or the targets of the preset that it is named after.
QuantizationScheme read_group(const std::string& name, const Json& group, const std::string& where) {
  if (!group.is_array()) return parse_quantization_scheme(without_column_order(group), where);
  QuantizationScheme scheme = preset_scheme(name);
  scheme.targets = parse_quantization_scheme(Json{{"targets", group}}, where).targets;
  return scheme;
}

/// Weights must be readable. Inputs may be of any kind: their numbers are not read with the weights.
void require_readable(QuantizationScheme scheme, const std::string& where) {
  if (!scheme.weights) return;  // a group for inputs of attention
  scheme.input_activations = scheme.output_activations = std::nullopt;
  try {
    require_supported(scheme, where);
  } catch (const RecipeError& error) {
    throw UnsupportedError("{}", error.what());
  }
}

/// The top-level format, which readers use if a group names none; "" where groups must.
std::string format_at_top(const Json& object, const std::string& where) {
  auto format = json_get_or<std::string>(object, "format", where, "");
  if (find_container_format(format) != nullptr) return format;
  if (!format.empty() && format != kMixedFormat && format != kDenseFormat)
    throw UnsupportedError("[quant.config] {}: format {} is not supported; start from the model that it was made of",
                           where, format);
  return "";
}

GroupTargets targets_of(const QuantizationConfig& config) {
  std::vector<GroupTargets::Group> groups;
  for (const auto& [name, scheme] : config.groups) groups.push_back({scheme.targets, "config_groups." + name});
  return GroupTargets(groups);
}

}  // namespace

Json to_json(const QuantizationConfig& config) {
  Json groups = Json::object();
  for (const auto& [name, scheme] : config.groups) groups[name] = group_to_json(scheme);
  return Json{{"config_groups", std::move(groups)},
              {"format", overall_format(config)},
              {"global_compression_ratio", nullptr},
              {"ignore", config.ignore},
              {"kv_cache_scheme", optional_args(config.kv_cache_scheme)},
              {"quant_method", "compressed-tensors"},
              {"quantization_status", "compressed"},
              {"sparsity_config", Json::object()},
              {"transform_config", Json::object()},
              {"version", kLayoutVersion}};
}

QuantizationConfig parse_quantization_config(const Json& object, const std::string& where) {
  require_header(object, where);
  const auto groups = json_get<Json>(object, "config_groups", where);
  const bool has_cache = json_has(object, "kv_cache_scheme");
  if (!groups.is_object() || (groups.empty() && !has_cache))
    throw CheckpointError("[quant.config] {}: config_groups must be a mapping with at least one group", where);
  QuantizationConfig config;
  config.ignore = json_get_or<std::vector<std::string>>(object, "ignore", where, {});
  const std::string top = format_at_top(object, where);
  try {
    for (const auto& [name, group] : groups.items()) {
      const std::string group_where = fmt::format("{}: config_groups.{}", where, name);
      QuantizationScheme scheme = read_group(name, group, group_where);
      if (scheme.format.empty()) scheme.format = top.empty() ? infer_format(scheme) : top;
      if (!scheme.weights && scheme.input_activations)
        require_supported_attention(*scheme.input_activations, group_where + ".input_activations");
      else
        require_readable(scheme, group_where);
      config.groups.emplace_back(name, std::move(scheme));
    }
    if (has_cache) {
      config.kv_cache_scheme = parse_quantization_args(object["kv_cache_scheme"], where + ": kv_cache_scheme");
      require_supported_attention(*config.kv_cache_scheme, where + ": kv_cache_scheme");
    }
  } catch (const RecipeError& error) {  // here the checkpoint is at fault, not a recipe
    throw CheckpointError("{}", error.what());
  }
  return config;
}

std::vector<int> assign_groups(const QuantizationConfig& config, const std::vector<ModuleName>& modules) {
  const TargetList ignore(config.ignore, "ignore");
  const GroupTargets targets = targets_of(config);
  std::vector<int> groups;
  groups.reserve(modules.size());
  for (const ModuleName& module : modules) groups.push_back(ignore.matches(module) ? -1 : targets.group_of(module));
  return groups;
}

}  // namespace layerpress::quant
