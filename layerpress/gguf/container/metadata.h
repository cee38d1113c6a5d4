#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <variant>
#include <vector>

namespace layerpress::gguf {

/// A value of GGUF's typed key-value section. Readers insist on exact types: a count is uint32_t, a rate float. Arrays of arrays,
/// which the format admits, have no users.
using Value =
    std::variant<std::uint8_t, std::int8_t, std::uint16_t, std::int16_t, std::uint32_t, std::int32_t, float, bool,
                 std::string, std::uint64_t, std::int64_t, double, std::vector<std::uint8_t>, std::vector<std::int8_t>,
                 std::vector<std::uint16_t>, std::vector<std::int16_t>, std::vector<std::uint32_t>,
                 std::vector<std::int32_t>, std::vector<float>, std::vector<bool>, std::vector<std::string>,
                 std::vector<std::uint64_t>, std::vector<std::int64_t>, std::vector<double>>;

/// Keys and values in the order of the file. Keys are distinct.
using Metadata = std::vector<std::pair<std::string, Value>>;

/// The value of `key` as T; null if the key is missing or its value has another type.
template <typename T>
const T* find_value(const Metadata& metadata, const std::string& key) {
  for (const auto& [name, value] : metadata) {
    if (name == key) return std::get_if<T>(&value);
  }
  return nullptr;
}

/// Whether the key is there, with a value of any type.
inline bool has_key(const Metadata& metadata, const std::string& key) {
  for (const auto& [name, value] : metadata)
    if (name == key) return true;
  return false;
}

}  // namespace layerpress::gguf
