#pragma once

#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "layerpress/base/error.h"

namespace layerpress {

using Json = nlohmann::json;
using OrderedJson = nlohmann::ordered_json;

/// What parse_json looks for beside the syntax.
struct JsonRules {
  int most_levels = 200;  ///< of nesting
  /// Called with a key that an object names twice, if there is one; it may throw.
  std::function<void(const std::string& key)> on_repeated_key{};
};

/// Parses `text`; a syntax error or too deep a nesting becomes a CheckpointError that names `where`.
Json parse_json(std::string_view text, const std::string& where, const JsonRules& rules = {});

/// Reads and parses a JSON file.
Json read_json_file(const std::filesystem::path& path);

/// Returns member `key` of `object` as T. Missing or of another type: CheckpointError naming `where` and the key.
template <typename T>
T json_get(const Json& object, const std::string& key, const std::string& where) {
  const auto found = object.find(key);
  if (found == object.end() || found->is_null()) throw CheckpointError("[json] {}: '{}' is missing", where, key);
  try {
    return found->get<T>();
  } catch (const nlohmann::json::exception&) {
    throw CheckpointError("[json] {}: '{}' has the wrong type: {}", where, key, found->dump().substr(0, 80));
  }
}

/// As json_get, but a missing or null member gives `otherwise`.
template <typename T>
T json_get_or(const Json& object, const std::string& key, const std::string& where, T otherwise) {
  const auto found = object.find(key);
  if (found == object.end() || found->is_null()) return otherwise;
  return json_get<T>(object, key, where);
}

}  // namespace layerpress
