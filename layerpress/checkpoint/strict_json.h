#pragma once

#include <string>
#include <string_view>

#include "layerpress/base/json.h"

namespace layerpress::checkpoint {

/// Parses JSON in which no object repeats a member name and nesting stays below 32 levels, as in safetensors headers
/// and shard indexes. Throws CheckpointError naming `where`.
Json parse_strict_json(std::string_view text, const std::string& where);

/// `name` in quotes for a message: control characters replaced and long names cut, so that the message stays one line.
std::string in_quotes(std::string_view name);

}  // namespace layerpress::checkpoint
