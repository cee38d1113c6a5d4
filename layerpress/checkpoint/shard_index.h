#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <vector>

namespace layerpress::checkpoint {

inline constexpr const char* kSingleFileName = "model.safetensors";
inline constexpr const char* kIndexName = "model.safetensors.index.json";

/// Which weight files a model folder has, and what each must hold.
struct ShardIndex {
  /// File name -> tensors that the index places in it. Without an index: the single file, with nothing demanded.
  std::map<std::string, std::vector<std::string>> shards;
};

/// Finds the weights of `directory` as transformers does: model.safetensors, else the files its index names. Every
/// name of the index is checked to be a plain file name, every file to be there. Throws CheckpointError.
ShardIndex find_shards(const std::filesystem::path& directory);

/// Whether `name` is one that weights in any format go by (.safetensors .bin .pth .gguf ... and their indexes).
bool is_weights_name(const std::string& name);

}  // namespace layerpress::checkpoint
