#include "layerpress/gguf/architectures/model_config.h"

#include <charconv>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <type_traits>

namespace layerpress::gguf {
namespace {

constexpr const char* kConfigFile = "config.json";

std::uint32_t checked_count(std::int64_t value, const char* key) {
  if (value < 1 || value > std::numeric_limits<std::int32_t>::max())
    throw CheckpointError("[gguf.config] config.json: '{}' is {}, expected 1 to 2^31 - 1", key, value);
  return static_cast<std::uint32_t>(value);
}

double checked_number(double value, const char* key) {
  if (!std::isfinite(value)) throw CheckpointError("[gguf.config] config.json: '{}' is not a finite number", key);
  return value;
}

/// The entry of one kind of layer in rope_parameters (transformers 5), if it has such entries.
Json of_layers(const Json& parameters, const char* kind) {
  const auto found = parameters.find(kind);
  return found != parameters.end() && found->is_object() ? *found : Json::object();
}

double checked_theta(double theta) {
  if (!(theta > 1) || !std::isfinite(theta))
    throw CheckpointError("[gguf.config] config.json: rope_theta {} is out of range", theta);
  return theta;
}

/// The shortest decimal that gives the float, as config.json has it: 1e-05, not 9.999999747378752e-06.
double decimal(float value) {
  char text[32];
  const auto end = std::to_chars(text, text + sizeof(text) - 1, value).ptr;
  *end = '\0';
  return std::strtod(text, nullptr);
}

template <typename T>
Json json_of(const T& value) {
  if constexpr (std::is_same_v<T, float>) {
    return decimal(value);
  } else if constexpr (std::is_arithmetic_v<T> || std::is_same_v<T, std::string>) {
    return value;
  } else {
    Json list = Json::array();
    for (std::size_t i = 0; i < value.size(); ++i)
      list.push_back(json_of<typename T::value_type>(value[i]));  // of vector<bool>, no reference
    return list;
  }
}

}  // namespace

Json FileFacts::value(const std::string& key) const {
  for (const auto& [name, value] : metadata)
    if (name == architecture + "." + key) return std::visit([](const auto& held) { return json_of(held); }, value);
  return {};
}

ModelConfig::ModelConfig(const FileFacts& file, const std::string& model_type)
    : values_({{"model_type", model_type}}), model_type_(model_type), file_(&file) {}

void ModelConfig::take(const char* entry, const std::string& key) {
  if (file_ == nullptr) return;
  values_[entry] = file_->value(key);
  if (values_[entry].is_null())
    throw CheckpointError("[gguf.config] the file has no key {}.{}, which a config.json calls {}", file_->architecture,
                          key, entry);
}

void ModelConfig::state(const char* entry, Json value) {
  if (file_ != nullptr) values_[entry] = std::move(value);
}

ModelConfig::ModelConfig(const Json& config) : values_(config) {
  if (!config.is_object()) throw CheckpointError("[gguf.config] config.json: not a JSON object");
  if (json_has(config, "text_config")) {
    if (!config["text_config"].is_object())
      throw CheckpointError("[gguf.config] config.json: 'text_config' is not an object");
    values_.update(config["text_config"]);
    if (config.contains("tie_word_embeddings")) values_["tie_word_embeddings"] = config["tie_word_embeddings"];
  }
  model_type_ = text("model_type", "");
}

std::uint32_t ModelConfig::count(const char* key) const {
  return checked_count(json_get<std::int64_t>(values_, key, kConfigFile), key);
}

std::uint32_t ModelConfig::count(const char* key, std::uint32_t otherwise) const {
  return checked_count(json_get_or<std::int64_t>(values_, key, kConfigFile, otherwise), key);
}

std::uint32_t ModelConfig::count_or_none(const char* key) const {
  const auto value = json_get_or<std::int64_t>(values_, key, kConfigFile, 0);
  return value == 0 ? 0 : checked_count(value, key);
}

std::uint32_t ModelConfig::natural(const char* key) const {
  return json_get<std::int64_t>(values_, key, kConfigFile) == 0 ? 0 : count(key);
}

double ModelConfig::number(const char* key, double otherwise) const {
  return checked_number(json_get_or<double>(values_, key, kConfigFile, otherwise), key);
}

bool ModelConfig::flag(const char* key, bool otherwise) const {
  return json_get_or<bool>(values_, key, kConfigFile, otherwise);
}

std::string ModelConfig::text(const char* key, const std::string& otherwise) const {
  return json_get_or<std::string>(values_, key, kConfigFile, otherwise);
}

std::vector<std::string> ModelConfig::texts(const char* key) const {
  return json_get_or<std::vector<std::string>>(values_, key, kConfigFile, {});
}

Json ModelConfig::list(const char* key) const {
  if (!has(key)) return Json::array();
  const Json& found = *values_.find(key);
  if (!found.is_array()) throw CheckpointError("[gguf.config] config.json: '{}' is not a list", key);
  return found;
}

Json ModelConfig::object(const char* key) const {
  if (!has(key)) return Json::object();
  const Json& found = *values_.find(key);
  if (!found.is_object()) throw CheckpointError("[gguf.config] config.json: '{}' is not an object", key);
  return found;
}

void ModelConfig::require(bool holds, const char* key, const std::string& what) const {
  if (holds) return;
  const auto found = values_.find(key);
  const std::string value = found == values_.end() ? "missing" : found->dump().substr(0, 60);
  throw CheckpointError(
      "[gguf.config] config.json: '{}' is {}, but llama.cpp's {} {}; write compressed-tensors instead", key, value,
      model_type_, what);
}

double RopeConfig::number(const char* key, double otherwise) const {
  return checked_number(json_get_or<double>(parameters, key, "config.json: rope parameters", otherwise), key);
}

RopeConfig read_rope(const ModelConfig& config, const RopeDefaults& defaults) {
  RopeConfig rope;
  const Json all = config.object("rope_parameters"), scaling = config.object("rope_scaling");
  const Json local = of_layers(all, "sliding_attention");
  const bool by_layers = all.contains("full_attention") || all.contains("sliding_attention");
  if (scaling.empty() && !all.empty()) rope.entry = "rope_parameters";
  if (by_layers) rope.parameters = of_layers(all, "full_attention");
  if (by_layers || !scaling.empty())
    rope.parameters.update(scaling);  // as transformers does, which else takes one of them
  else
    rope.parameters = all;
  const Json& parameters = rope.parameters;
  constexpr const char* kWhere = "config.json: rope parameters";
  rope.kind = json_get_or<std::string>(parameters, "rope_type", kWhere,
                                       json_get_or<std::string>(parameters, "type", kWhere, "default"));
  rope.theta = checked_theta(rope.number("rope_theta", config.number("rope_theta", defaults.theta)));
  const double local_theta = json_get_or<double>(local, "rope_theta", kWhere, config.number("rope_local_base_freq", 0));
  if (local_theta != 0) rope.local_theta = checked_theta(local_theta);
  if (!local.empty())
    rope.local_kind = json_get_or<std::string>(local, "rope_type", kWhere,
                                               json_get_or<std::string>(local, "type", kWhere, "default"));
  rope.rotated_part =
      rope.number("partial_rotary_factor", config.number("partial_rotary_factor", defaults.rotated_part));
  if (!(rope.rotated_part > 0) || rope.rotated_part > 1)
    throw CheckpointError("[gguf.config] config.json: partial_rotary_factor {} is out of range", rope.rotated_part);
  return rope;
}

std::uint32_t without_fraction(double value, const char* key) {
  if (!(value >= 0 && value < 2147483648.0))
    throw CheckpointError("[gguf.config] config.json: {} {} is out of range", key, value);
  return static_cast<std::uint32_t>(value);
}

}  // namespace layerpress::gguf
