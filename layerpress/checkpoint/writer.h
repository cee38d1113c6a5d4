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
///
/// Several writers, in as many processes, can make one checkpoint in a folder that all of them see: its tensors are divided
/// into sets, no file holds tensors of two sets, and each writer makes, writes and closes the files of the sets that are its
/// own. All are given the same specs in the same order, so all know where every tensor lies.
class CheckpointWriter {
 public:
  struct Options {
    std::uint64_t max_shard_bytes = 5'000'000'000;
    bool reopen = false;  ///< go on with the files of an earlier writer of the same specs; those missing are made
    int sets = 1;
    std::vector<int> set_of_spec{};  ///< from 0 to `sets` - 1 for every spec; empty: all 0. Files of set 0 come first
    std::vector<bool> own{};         ///< by set, whether this writer writes it; empty: all
  };

  /// REQUIRES: `directory` exists. Throws CheckpointError when files cannot be made or the disk is too small, and
  /// InternalError when a name stands twice or sets are not as said above. With `reopen`, an own file of another size or
  /// with another header is made anew. Files that are not own are not looked at.
  CheckpointWriter(std::filesystem::path directory, const std::vector<TensorSpec>& specs, Options options);
  ~CheckpointWriter();

  /// Writes one tensor (any device, made contiguous). Throws InternalError when it was not announced, differs in dtype
  /// or shape from its spec, is not own, or was written before. Thread-safe.
  void write(const std::string& name, const at::Tensor& tensor);

  /// Whether this writer writes the tensor. Throws InternalError when it was not announced.
  bool owns(const std::string& name) const;

  /// A tensor that was written, accepted or adopted, read back from its file. Throws InternalError for others, and
  /// CheckpointError when the file of an adopted one is not there or is not as long as it should be. Thread-safe.
  /// REQUIRES: finish() was not called.
  at::Tensor read(const std::string& name) const;

  /// Checksum (base/checksum.h) of the bytes of a tensor that was written, accepted or adopted. Throws InternalError for
  /// others.
  std::string checksum(const std::string& name) const;

  /// Takes a tensor that an earlier writer left in the file as written, if its bytes have this checksum; reads in pieces.
  /// When false, the tensor is still to be written. Throws InternalError when it was not announced, is not own or is written
  /// already.
  bool accept(const std::string& name, const std::string& checksum);

  /// Takes the word of another writer, whose own the tensor is, that it has this checksum; its bytes are not looked at.
  /// Throws InternalError when it was not announced, is own or was adopted before.
  void adopt(const std::string& name, const std::string& checksum);

  /// Forgets that a tensor was accepted or adopted; it has to be written after all.
  void retract(const std::string& name);

  /// Waits until all tensors written so far are on disk. Thread-safe, and other threads may go on writing.
  void sync();

  /// Throws InternalError naming own tensors that were never written. Syncs and closes the own files; when all are own,
  /// writes the index.
  void finish();

  /// Writes the index of all sets, unless one file holds everything or this writer wrote it before. One of several writers
  /// calls this.
  void write_index();

  /// Of all sets.
  std::uint64_t total_bytes() const { return total_bytes_; }
  /// Names of the weight files of all sets.
  std::vector<std::string> file_names() const;

 private:
  struct Place;
  struct Shard;
  void add_shard(Shard shard, const std::vector<TensorSpec>& specs, bool own, bool reopen);
  const Place& announced_place(const std::string& name, const char* doing) const;
  Place& claim(const std::string& name, const char* doing, bool own);
  void read_from_other(Shard& shard, std::uint64_t offset, void* bytes, std::uint64_t length) const;
  const Place& written_place(const std::string& name) const;
  std::filesystem::path directory_;
  std::map<std::string, Place> places_;
  std::vector<std::unique_ptr<Shard>> shards_;
  std::uint64_t total_bytes_ = 0;
  std::uint64_t total_parameters_ = 0;
  mutable std::mutex mutex_;  // over the changing members of places and shards
  std::mutex sync_mutex_;     // a sync() that finds nothing to do waits for the one under way
  bool directory_synced_ = false;
  bool index_written_ = false;
};

/// Writes `config` as config.json (indent 2, sorted keys, newline) into `directory` and copies the companion files of
/// `source` (following links), except files named in `without`.
void write_companions(const Checkpoint& source, const Json& config, const std::filesystem::path& directory,
                      const std::vector<std::string>& without = {});

}  // namespace layerpress::checkpoint
