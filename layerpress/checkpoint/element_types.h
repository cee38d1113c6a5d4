#pragma once

#include <c10/core/ScalarType.h>

#include <optional>
#include <string>
#include <string_view>

namespace layerpress::checkpoint {

/// The dtype that safetensors calls `name`, or nothing for an unsupported name. Inverse of dtype_name.
std::optional<at::ScalarType> dtype_named(std::string_view name);

/// Whether safetensors has a name for it.
bool has_dtype_name(at::ScalarType dtype);

/// All names that dtype_named knows, for messages.
std::string dtype_names();

}  // namespace layerpress::checkpoint
