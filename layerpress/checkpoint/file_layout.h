#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "layerpress/checkpoint/safetensors.h"

namespace layerpress::checkpoint {

/// A weight file before any tensor is there: its first bytes, and the place of each tensor. Bytes that belong to neither are 0.
struct FileLayout {
  std::string name;
  int set = 0;  ///< of the sets of tensors; its writer creates the file
  std::string header;
  std::vector<StoredTensor> tensors;
  std::uint64_t size = 0;
  /// Of each tensor, if the file has tensors of several sets. The writers of all sets then write into it; that of `set` comes first.
  std::vector<int> set_of_tensor{};
};

/// All files of a checkpoint.
struct CheckpointLayout {
  std::vector<FileLayout> files;
  bool has_index = true;  ///< more than one file have a model.safetensors.index.json
};

/// How tensors are divided into files.
struct FileDivision {
  std::uint64_t max_shard_bytes = 5'000'000'000;
  int sets = 1;
  std::vector<int> set_of_spec{};  ///< from 0 to `sets` - 1 for every spec; empty: all 0. Files of set 0 come first
};

/// A safetensors file with these tensors, ordered by element size, largest first, and otherwise as given, so that each one is aligned to
/// its element size. It has no name yet.
FileLayout safetensors_file(std::vector<TensorSpec> tensors,
                            const std::map<std::string, std::string>& metadata = {{"format", "pt"}});

/// Safetensors files, filled greedily in the order of `specs`; a tensor larger than the limit gets its own file. A single one is
/// `model.safetensors`, else `model-00001-of-0000N.safetensors`. Throws InternalError if the sets are invalid.
CheckpointLayout safetensors_layout(const std::vector<TensorSpec>& specs, const FileDivision& division);

}  // namespace layerpress::checkpoint
