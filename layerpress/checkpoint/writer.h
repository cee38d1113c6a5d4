#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "layerpress/base/file.h"
#include "layerpress/base/json.h"
#include "layerpress/checkpoint/checkpoint.h"
#include "layerpress/checkpoint/safetensors.h"

namespace layerpress::checkpoint {

/// Writes a sharded checkpoint as a stream. All names, dtypes and shapes are given up front, so every tensor has its
/// place before the first byte is written: tensors may come in any order and from several threads, nothing is held back,
/// and a disk that is too small is noticed at the start.
///
///   CheckpointWriter writer(pending_directory, specs, {.max_shard_bytes = 5'000'000'000});
///   writer.write("model.layers.0.self_attn.q_proj.weight_packed", packed);   // once for every spec
///   writer.finish();                                                         // all there? synced; index written
///
/// Shards: greedy in the order of `specs`; a tensor larger than the limit gets a shard of its own; one shard is
/// `model.safetensors` without an index, else `model-00001-of-0000N.safetensors` and `model.safetensors.index.json`
/// ({"metadata": {"total_parameters", "total_size"}, "weight_map"}, indent 2, sorted, newline at the end). Inside a
/// shard tensors are ordered by element size, largest first, so that each one is aligned to its element size.
class CheckpointWriter {
 public:
  struct Options {
    std::uint64_t max_shard_bytes = 5'000'000'000;
  };

  /// REQUIRES: `directory` exists. Throws CheckpointError when files cannot be made or the disk is too small, and
  /// InternalError when a name stands twice.
  CheckpointWriter(std::filesystem::path directory, const std::vector<TensorSpec>& specs, Options options);
  ~CheckpointWriter();

  /// Writes one tensor (any device, made contiguous). Throws InternalError when it was not announced, differs in dtype
  /// or shape from its spec, or was written before. Thread-safe.
  void write(const std::string& name, const at::Tensor& tensor);

  /// Throws InternalError naming tensors that were announced and never written. Syncs all files, writes the index.
  void finish();

  std::uint64_t total_bytes() const { return total_bytes_; }

 private:
  struct Place;
  struct Shard;
  std::filesystem::path directory_;
  std::map<std::string, Place> places_;
  std::vector<std::unique_ptr<Shard>> shards_;
  std::uint64_t total_bytes_ = 0;
  std::uint64_t total_parameters_ = 0;
  std::mutex mutex_;
};

/// Writes `config` as config.json (indent 2, sorted keys, newline) into `directory` and copies the companion files of
/// `source` (following links), except files named in `without`.
void write_companions(const Checkpoint& source, const Json& config, const std::filesystem::path& directory,
                      const std::vector<std::string>& without = {});

}  // namespace layerpress::checkpoint
