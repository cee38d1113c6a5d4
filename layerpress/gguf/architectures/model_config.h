#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "layerpress/base/json.h"
#include "layerpress/gguf/container/metadata.h"

namespace layerpress::gguf {

/// What a GGUF says of its model.
struct FileFacts {
  std::string architecture{};  ///< general.architecture
  Metadata metadata{};
  std::map<std::string, std::vector<std::int64_t>> shapes{};  ///< of its tensors, as in torch
  /// The values of a small tensor [values] of floats. Throws CheckpointError for another one.
  std::function<std::vector<float>(const std::string& tensor)> values{};

  bool has_tensor(const std::string& name) const { return shapes.count(name) != 0; }
  /// The value of a key of the architecture as config.json writes it; null if there is none.
  Json value(const std::string& key) const;
};

/// The config.json of a checkpoint, for its language model: the entries of `text_config`, if there is one, stand before the others,
/// but for the tie of head and embeddings, where the whole model's word counts.
/// Every getter throws CheckpointError naming the key if a value is missing without a default, or out of range.
///
/// Or the config of a GGUF's model, which begins empty: the family that gives a model its keys takes each entry from the file's keys
/// before it reads it, so that one description of a family serves both directions.
class ModelConfig {
 public:
  explicit ModelConfig(const Json& config);
  ModelConfig(const FileFacts& file, const std::string& model_type);

  /// The file that the config is made from; null for a config.json.
  const FileFacts* file() const { return file_; }
  /// If the config is made from a file: an entry from one of its keys, as in config.json. Throws CheckpointError if the file lacks
  /// the key.
  void take(const char* entry, const std::string& key);
  /// If the config is made from a file: an entry that follows from the architecture.
  void state(const char* entry, Json value);
  void forget(const char* entry) { values_.erase(entry); }
  const Json& values() const { return values_; }

  const std::string& model_type() const { return model_type_; }
  bool has(const char* key) const { return json_has(values_, key); }  ///< and is not null
  bool given(const char* key) const { return values_.contains(key); }

  /// A number from 1 to 2^31 - 1.
  std::uint32_t count(const char* key) const;
  std::uint32_t count(const char* key, std::uint32_t otherwise) const;
  /// The same, or 0 for a missing or null key.
  std::uint32_t count_or_none(const char* key) const;

  /// A number from 0 to 2^31 - 1.
  std::uint32_t natural(const char* key) const;

  double number(const char* key, double otherwise) const;
  bool flag(const char* key, bool otherwise) const;
  std::string text(const char* key, const std::string& otherwise) const;
  std::vector<std::string> texts(const char* key) const;  ///< empty for a missing or null key
  Json list(const char* key) const;                       ///< empty for a missing or null key
  /// An object, or an empty one for a missing or null key.
  Json object(const char* key) const;

  /// Throws CheckpointError unless `holds`: llama.cpp computes nothing else. `what` says what it computes.
  void require(bool holds, const char* key, const std::string& what) const;

 private:
  Json values_;
  std::string model_type_;
  const FileFacts* file_ = nullptr;
};

/// The rotary embedding of a config, from `rope_parameters` or from `rope_theta` and `rope_scaling`.
struct RopeConfig {
  Json parameters = Json::object();  ///< those of full attention
  std::string kind;                  ///< "default", "linear", "yarn", "llama3", "longrope", ...
  double theta = 0;
  double local_theta = 0;  ///< of layers with a sliding window; 0 if it is the same
  std::string local_kind;  ///< of layers with a sliding window; empty if nothing is said of them
  double rotated_part = 1;
  const char* entry = "rope_scaling";  ///< of the config that has the parameters

  double number(const char* key, double otherwise) const;
  bool has(const char* key) const { return json_has(parameters, key); }
};

struct RopeDefaults {
  double theta = 10000;
  double rotated_part = 1;
  bool by_layers = false;  ///< rope_parameters has an entry for each kind of layer
  bool by_axes = false;    ///< rope_parameters divides frequencies among time, height and width of images
};

/// A number of config.json without its fraction. Throws CheckpointError unless that is 0 to 2^31 - 1.
std::uint32_t without_fraction(double value, const char* key);

RopeConfig read_rope(const ModelConfig& config, const RopeDefaults& defaults);

}  // namespace layerpress::gguf
