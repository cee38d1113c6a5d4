#pragma once

#include <filesystem>
#include <string>

#include "layerpress/base/json.h"

namespace layerpress::checkpoint {

/// The quantization that a file beside config.json describes, in the form of config.json's quantization_config: "quant_method" is
/// that of the tool which writes such files (hf_quant_config.json: modelopt, quantize_config.json: gptq, quant_config.json: awq).
/// Null if there is none. Throws CheckpointError.
Json read_quantization_file(const std::filesystem::path& directory);

/// Whether a file of this name describes a checkpoint's quantization, and nothing else.
bool is_quantization_file(const std::string& name);

}  // namespace layerpress::checkpoint
