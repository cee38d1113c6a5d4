#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <vector>

namespace layerpress::checkpoint {

inline constexpr const char* kSingleFileName = "model.safetensors";
inline constexpr const char* kIndexName = "model.safetensors.index.json";

/// The weight files of a model folder and the tensors that each must contain.
struct ShardIndex {
  /// File name -> tensors that the index places in it. Without an index: the single file, with no required tensors.
  std::map<std::string, std::vector<std::string>> shards;
};

/// Chat templates with names, beside chat_template.jinja.
inline constexpr const char* kTemplatesFolder = "additional_chat_templates";
/// Names the weights that an adapter changes, which lie beside it.
inline constexpr const char* kAdapterConfigName = "adapter_config.json";

/// Finds the weights of `directory` as transformers does: model.safetensors, else the files that its index names.
/// Checks that every name in the index is a plain file name and that every file exists. Throws CheckpointError.
ShardIndex find_shards(const std::filesystem::path& directory);

/// Whether `name` is a usual name of weights in any format (.safetensors .bin .pth .gguf ...), or of a file that says how such
/// weights are read: their indexes, an adapter's config.
bool is_weights_name(const std::string& name);

}  // namespace layerpress::checkpoint
