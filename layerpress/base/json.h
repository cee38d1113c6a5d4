#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "layerpress/base/error.h"

namespace layerpress {

using Json = nlohmann::json;
using OrderedJson = nlohmann::ordered_json;

/// Checks of parse_json besides the syntax.
struct JsonRules {
  int most_levels = 200;  ///< deepest nesting
  /// Of objects, arrays and all that they hold: a parsed value takes up to 50 times the memory of its text.
  std::size_t most_values = std::numeric_limits<std::size_t>::max();
  /// Called with a key that occurs twice in one object, if there is one. It may throw.
  std::function<void(const std::string& key)> on_repeated_key{};
};

/// Parses `text`. Throws CheckpointError naming `where` for a syntax error or nesting that is too deep.
Json parse_json(std::string_view text, const std::string& where, const JsonRules& rules = {});

/// Reads and parses a JSON file of at most `limit` bytes.
Json read_json_file(const std::filesystem::path& path, std::uint64_t limit = 512u << 20);

/// An integer, which may be written as a float without a fraction ("32.0"). Throws CheckpointError for anything else, which the
/// library would turn into some integer.
std::int64_t json_integer(const Json& value);
/// The same for each element of a list.
std::vector<std::int64_t> json_integers(const Json& list);

/// The beginning of its text, for a message; valid UTF-8 whatever it holds.
std::string shortened(const Json& value);

/// Whether `object` has a member `key` that is not null.
template <typename AnyJson>
bool json_has(const AnyJson& object, const char* key) {
  const auto found = object.find(key);
  return found != object.end() && !found->is_null();
}

/// Member `key` of `object` as T. Throws CheckpointError naming `where` and the key if it is missing or has another
/// type.
template <typename T>
T json_get(const Json& object, const std::string& key, const std::string& where) {
  const auto found = object.find(key);
  if (found == object.end() || found->is_null()) throw CheckpointError("[json] {}: '{}' is missing", where, key);
  const char* fault = "has the wrong type or is out of range";
  try {
    if constexpr (std::is_integral_v<T> && !std::is_same_v<T, bool>) {
      const std::int64_t number = json_integer(*found);
      if (std::in_range<T>(number)) return static_cast<T>(number);
    } else if constexpr (std::is_same_v<T, std::vector<std::int64_t>>) {
      return json_integers(*found);
    } else {
      return found->get<T>();
    }
  } catch (const CheckpointError&) {  // of json_integer, which does not know the key
  } catch (const nlohmann::json::exception&) {
    fault = "has the wrong type";
  }
  throw CheckpointError("[json] {}: '{}' {}: {}", where, key, fault, shortened(*found));
}

/// Like json_get, but returns `otherwise` for a missing or null member.
template <typename T>
T json_get_or(const Json& object, const std::string& key, const std::string& where, T otherwise) {
  const auto found = object.find(key);
  if (found == object.end() || found->is_null()) return otherwise;
  return json_get<T>(object, key, where);
}

}  // namespace layerpress
