#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "layerpress/base/json.h"

namespace layerpress::gguf {

/// The config.json of a checkpoint, for its language model: the entries of `text_config`, if there is one, stand before the others.
/// Every getter throws CheckpointError naming the key if a value is missing without a default, or out of range.
class ModelConfig {
 public:
  explicit ModelConfig(const Json& config);

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
};

/// The rotary embedding of a config, from `rope_parameters` or from `rope_theta` and `rope_scaling`.
struct RopeConfig {
  Json parameters = Json::object();  ///< those of full attention
  std::string kind;                  ///< "default", "linear", "yarn", "llama3", "longrope", ...
  double theta = 0;
  double local_theta = 0;  ///< of layers with a sliding window; 0 if it is the same
  double rotated_part = 1;

  double number(const char* key, double otherwise) const;
  bool has(const char* key) const { return json_has(parameters, key); }
};

struct RopeDefaults {
  double theta = 10000;
  double rotated_part = 1;
};

RopeConfig read_rope(const ModelConfig& config, const RopeDefaults& defaults);

}  // namespace layerpress::gguf
