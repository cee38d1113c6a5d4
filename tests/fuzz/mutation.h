#pragma once

#include <string>
#include <string_view>

namespace layerpress::fuzz {

// Changes that know an input's structure. The result has the same structure; it is empty if the input does not have it.

/// A member, an element or a value of JSON: of the whole input, or of one of its lines.
std::string changed_json_lines(std::string_view input, unsigned int seed);

/// A key, a value, or a tensor of a GGUF's header.
std::string changed_gguf(std::string_view input, unsigned int seed);

}  // namespace layerpress::fuzz
