#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <string>
#include <string_view>

namespace layerpress::checkpoint {

/// The dtype that safetensors calls `name`, or nothing for an unsupported name. Inverse of dtype_name.
std::optional<at::ScalarType> dtype_named(std::string_view name);

/// Throws CheckpointError for a tensor that no file can hold: undefined, sparse, without values, or of a dtype for which safetensors
/// has no name. `place`: for the message.
void require_storable(const at::Tensor& tensor, const std::string& name, const char* place);

/// All names that dtype_named knows, for messages.
std::string dtype_names();

}  // namespace layerpress::checkpoint
