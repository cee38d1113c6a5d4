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
    bool reopen = false;  ///< go on with the files of an earlier writer of the same specs; those missing are made
  };

  /// REQUIRES: `directory` exists. Throws CheckpointError when files cannot be made or the disk is too small, and
  /// InternalError when a name stands twice. With `reopen`, a file of another size or with another header is made anew.
  CheckpointWriter(std::filesystem::path directory, const std::vector<TensorSpec>& specs, Options options);
  ~CheckpointWriter();

  /// Writes one tensor (any device, made contiguous). Throws InternalError when it was not announced, differs in dtype
  /// or shape from its spec, or was written before. Thread-safe.
  void write(const std::string& name, const at::Tensor& tensor);

  /// A tensor that was written (or accepted), read back from its file. Throws InternalError for others. Thread-safe.
  /// REQUIRES: finish() was not called.
  at::Tensor read(const std::string& name) const;

  /// Checksum (base/checksum.h) of the bytes of a tensor that was written or accepted. Throws InternalError for others.
  std::string checksum(const std::string& name) const;

  /// Takes a tensor that an earlier writer left in the file as written, if its bytes have this checksum; reads in pieces.
  /// When false, the tensor is still to be written. Throws InternalError when it was not announced or is written already.
  bool accept(const std::string& name, const std::string& checksum);

  /// Forgets that a tensor was accepted; it has to be written after all.
  void retract(const std::string& name);

  /// Waits until all tensors written so far are on disk. Thread-safe, and other threads may go on writing.
  void sync();

  /// Throws InternalError naming tensors that were announced and never written. Syncs and closes all files, writes the
  /// index.
  void finish();

  std::uint64_t total_bytes() const { return total_bytes_; }
  /// Names of the weight files.
  std::vector<std::string> file_names() const;

 private:
  struct Place;
  struct Shard;
  Place& claim(const std::string& name, const char* doing);
  const Place& written_place(const std::string& name) const;
  std::filesystem::path directory_;
  std::map<std::string, Place> places_;
  std::vector<std::unique_ptr<Shard>> shards_;
  std::uint64_t total_bytes_ = 0;
  std::uint64_t total_parameters_ = 0;
  mutable std::mutex mutex_;  // over the changing members of places and shards
  std::mutex sync_mutex_;     // a sync() that finds nothing to do waits for the one under way
  bool directory_synced_ = false;
};

/// Writes `config` as config.json (indent 2, sorted keys, newline) into `directory` and copies the companion files of
/// `source` (following links), except files named in `without`.
void write_companions(const Checkpoint& source, const Json& config, const std::filesystem::path& directory,
                      const std::vector<std::string>& without = {});

}  // namespace layerpress::checkpoint
