#include "layerpress/gguf/read_architecture.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <utility>

#include "layerpress/base/text.h"
#include "layerpress/gguf/architectures/families.h"

namespace layerpress::gguf {
namespace {

/// The model type of an architecture: that of the first family with its name, unless the file says that it is a relative.
std::string model_type_of(const FileFacts& file, const std::string& first) {
  if (first == "llama" && !file.value("expert_count").is_null() && file.value("expert_count") != 0) return "mixtral";
  if (first == "olmo2" && !file.value("attention.sliding_window").is_null()) return "olmo3";
  if (first == "deepseek_v2" && file.value("expert_gating_func") == 2) return "deepseek_v3";
  if (first == "gemma3") return "gemma3_text";
  return first;
}

const Family& family_of(const FileFacts& file) {
  std::vector<std::string> names;
  std::string model_type;
  for (const Family& family : families()) {
    names.push_back(family.name);
    if (model_type.empty() && family.name == file.architecture) model_type = model_type_of(file, family.model_type);
  }
  names.erase(std::unique(names.begin(), names.end()), names.end());
  for (const Family& family : families())
    if (family.model_type == model_type) return family;
  throw CheckpointError("[gguf.architecture] general.architecture '{}' is not known; {}",
                        file.architecture.substr(0, 60), nearest_or_all(file.architecture, names));
}

bool same(const Json& one, const Json& other) {
  if (one.is_array() && other.is_array())
    return one.size() == other.size() &&
           std::equal(one.begin(), one.end(), other.begin(), [](const Json& a, const Json& b) { return same(a, b); });
  if (one.is_array()) return std::all_of(one.begin(), one.end(), [&](const Json& value) { return same(value, other); });
  if (one.is_number() && other.is_number()) {
    const auto a = one.get<double>(), b = other.get<double>();
    return std::abs(a - b) <= 1e-5 * std::max(std::abs(a), std::abs(b));
  }
  return one == other;
}

/// Whether a key that the family does not write says nothing that config.json would not.
bool says_nothing_new(const std::string& key, const Json& value, const FileFacts& file, const Json& config) {
  if (key == "rope.scaling.finetuned" || key == "tensor_data_layout") return true;
  if (key == "attention.causal") return value == true;
  if (key == "vocab_size") return value == config["vocab_size"];
  if (key == "rope.scaling.type") return value == "none";
  if (key == "rope.scaling.attn_factor") return same(value, 1);
  if (key == "rope.freq_base_swa") return same(value, file.value("rope.freq_base"));
  if (key == "rope.dimension_count") return same(value, config.value("head_dim", Json()));
  if (key == "expert_count" || key == "expert_used_count") return value == 0;
  if (key == "expert_feed_forward_length") return same(value, config["intermediate_size"]);
  if (key == "expert_gating_func") return value == 1;
  if (key == "expert_weights_norm") return value == config.value("norm_topk_prob", Json());
  if (key == "expert_weights_scale") return same(value, 1);
  // Converters write it for models whose own config.json switches windows off.
  return key == "attention.sliding_window" && value.is_number() && value >= config["max_position_embeddings"];
}

/// The keys of the architecture are those that the config gives.
void check_keys(const FileFacts& file, const Architecture& made, const Json& config) {
  const FileFacts given{.architecture = made.name, .metadata = made.metadata};
  const std::string prefix = made.name + ".";
  for (const auto& pair : file.metadata) {
    if (!pair.first.starts_with(prefix)) continue;
    const std::string key = pair.first.substr(prefix.size());
    const Json value = file.value(key), expected = given.value(key);
    if (expected.is_null() ? says_nothing_new(key, value, file, config) : same(value, expected)) continue;
    throw CheckpointError("[gguf.architecture] {} is {}, which {} does not compute{}; open the original checkpoint",
                          pair.first.substr(0, 80), shortened(value), made.name,
                          expected.is_null() ? "" : " (" + shortened(expected) + " is what it computes)");
  }
}

/// The tensors that the config gives are those of the file.
void check_made(const FileFacts& file, const Architecture& made) {
  for (const MadeTensor& tensor : made.made) {
    const std::vector<float> values = file.values(tensor.name);
    bool equal = values.size() == tensor.values.size();
    for (std::size_t i = 0; equal && i < values.size(); ++i) equal = same(values[i], tensor.values[i]);
    if (!equal)
      throw CheckpointError(
          "[gguf.architecture] {}: no way of stretching positions gives its values; open the original {}", tensor.name,
          "checkpoint");
  }
}

/// The text part of a model for images as the model that it is without any: text has one position on all axes, and nothing is added
/// to its first layers. Nothing for other models.
std::optional<FileFacts> of_text_alone(const FileFacts& given) {
  static const std::map<std::string, std::string> kText = {
      {"qwen2vl", "qwen2"}, {"qwen3vl", "qwen3"}, {"qwen3vlmoe", "qwen3moe"}};
  const auto found = kText.find(given.architecture);
  if (found == kText.end()) return std::nullopt;
  FileFacts file = given;
  const std::string prefix = std::exchange(file.architecture, found->second) + ".";
  std::erase_if(file.metadata, [&](const auto& entry) {
    return entry.first == prefix + "rope.dimension_sections" || entry.first == prefix + "n_deepstack_layers";
  });
  for (auto& entry : file.metadata)
    if (entry.first.starts_with(prefix)) entry.first.replace(0, prefix.size(), found->second + ".");
  return file;
}

bool of_activations(const std::string& tensor) { return tensor.ends_with(".input_scale"); }

}  // namespace

ReadArchitecture read_architecture(const FileFacts& given) {
  const std::optional<FileFacts> text = of_text_alone(given);
  const FileFacts& file = text ? *text : given;
  const Family& family = family_of(file);
  ModelConfig config(file, family.model_type);
  ReadArchitecture read{.config = {}, .architecture = family.make(config)};
  read.config = config.values();
  read.config["architectures"] = Json::array({family.class_name});
  check_keys(file, read.architecture, read.config);
  check_made(file, read.architecture);
  return read;
}

PlacedTensors checkpoint_tensors(const ReadArchitecture& model, const FileFacts& file) {
  PlacedTensors placed;
  for (const auto& [name, shape] : file.shapes) {
    const std::vector<MadeTensor>& made = model.architecture.made;
    if (std::any_of(made.begin(), made.end(),
                    [&, &own = name](const MadeTensor& tensor) { return tensor.name == own; }))
      continue;
    if (of_activations(name)) continue;
    const std::vector<Origin> origins = model.architecture.names.origins(name, shape.front());
    if (origins.empty())
      throw CheckpointError("[gguf.architecture] tensor '{}' is none of {}; open the original checkpoint",
                            name.substr(0, 80), model.architecture.name);
    for (const Origin& origin : origins) placed[origin.name].push_back({name, origin.place});
  }
  for (const auto& [name, parts] : placed)
    if (const Placement whole = model.architecture.place(name); whole.places.size() > parts.size())
      throw CheckpointError("[gguf.architecture] tensor '{}' is missing beside '{}'; fetch the file again",
                            whole.places.back().name, parts.front().tensor);
  for (const auto& [name, shape] : file.shapes)  // they stand for no tensor of a checkpoint and keep their names
    if (of_activations(name)) placed[name].push_back({name, {}});
  return placed;
}

}  // namespace layerpress::gguf
