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
#include "layerpress/checkpoint/file_layout.h"
#include "layerpress/checkpoint/safetensors.h"

namespace layerpress::checkpoint {

/// Writes a sharded checkpoint as a stream. All names, dtypes and shapes are given up front, so every tensor has its
/// position before the first byte is written: tensors may arrive in any order and from several threads, nothing is held
/// back, and a disk that is too small is noticed at the start.
///
///   CheckpointWriter writer(pending_directory, safetensors_layout(specs, {}), {});
///   writer.write("model.layers.0.self_attn.q_proj.weight_packed", packed);   // once for every spec
///   writer.finish();                                                         // checks, syncs, writes the index
///
/// The index of several files is `model.safetensors.index.json` ({"metadata": {"total_parameters", "total_size"}, "weight_map"},
/// indent 2, sorted, newline at the end).
///
/// Several writers, one per process, can write one checkpoint into a shared folder. The tensors are divided into sets.
/// Each writer creates, writes and closes the files of its own sets. All writers get the same layout, so all of them know
/// the position of every tensor. A file with tensors of several sets (FileLayout::set_of_tensor) is created by the writer of
/// its own set; the others are made after it, and all write their tensors to their places.
class CheckpointWriter {
 public:
  struct Options {
    bool reopen = false;  ///< continue the files of an earlier writer with the same layout; missing files are created
    std::vector<bool> own{};  ///< for each set, whether this writer writes it; empty: all
  };

  /// REQUIRES: `directory` exists. Throws IoError if files cannot be created or the disk is too small, and
  /// InternalError if a name occurs twice. With `reopen`, an own file with another size or header is created again. Files of
  /// other writers are not examined.
  CheckpointWriter(std::filesystem::path directory, const CheckpointLayout& layout, const Options& options);
  ~CheckpointWriter();

  /// Writes one tensor (any device, made contiguous). Throws InternalError if it has no spec, differs from its spec in
  /// dtype or shape, belongs to another writer, or was already written. Thread-safe.
  void write(const std::string& name, const at::Tensor& tensor);

  /// Whether this writer writes the tensor. Throws InternalError if it has no spec.
  bool owns(const std::string& name) const;

  /// A tensor that was written, accepted or adopted, read back from its file. Throws InternalError for other tensors,
  /// and IoError if the file of an adopted tensor is missing or has the wrong size. Thread-safe. REQUIRES:
  /// finish() was not called.
  at::Tensor read(const std::string& name) const;

  /// Checksum (base/files/checksum.h) of the bytes of a tensor that was written, accepted or adopted. Throws InternalError
  /// for other tensors.
  std::string checksum(const std::string& name) const;

  /// Marks a tensor that an earlier writer left in the file as written if its bytes have this checksum; reads in
  /// pieces. Returns false if the tensor still has to be written. Throws InternalError if it has no spec, belongs to
  /// another writer or is already written.
  bool accept(const std::string& name, const std::string& checksum);

  /// Marks another writer's tensor as written with this checksum, without reading its bytes. Throws InternalError if it
  /// has no spec, belongs to this writer or was already adopted.
  void adopt(const std::string& name, const std::string& checksum);

  /// Reverts accept() or adopt(): the tensor has to be written after all.
  void retract(const std::string& name);

  /// Waits until all tensors written so far are on disk. Thread-safe; other threads may continue to write.
  void sync();

  /// Throws InternalError naming own tensors that were never written. Syncs and closes the own files. Writes the index
  /// if all sets are own.
  void finish();

  /// Writes the index of all sets, unless a single file contains everything or this writer has already written it. With
  /// several writers, one of them calls this.
  void write_index();

  /// Over all sets.
  std::uint64_t total_bytes() const { return total_bytes_; }
  /// Of all files, with what is beside tensors.
  std::uint64_t file_bytes() const;
  /// Names of the weight files of all sets.
  std::vector<std::string> file_names() const;

 private:
  struct Place;
  struct Shard;
  void add_shard(const FileLayout& layout, const Options& options);
  const Place& announced_place(const std::string& name, const char* doing) const;
  Place& claim(const std::string& name, const char* doing, bool own);
  void read_from_other(Shard& shard, std::uint64_t offset, void* bytes, std::uint64_t length) const;
  const Place& written_place(const std::string& name) const;
  std::filesystem::path directory_;
  const bool has_index_;
  std::map<std::string, Place> places_;
  std::vector<std::unique_ptr<Shard>> shards_;
  std::uint64_t total_bytes_ = 0;
  std::uint64_t total_parameters_ = 0;
  mutable std::mutex mutex_;  // guards the mutable members of places and shards
  std::mutex sync_mutex_;     // a sync() with nothing to do waits for the running one
  bool directory_synced_ = false;
  bool index_written_ = false;
};

}  // namespace layerpress::checkpoint
