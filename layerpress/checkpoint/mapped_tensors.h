#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "layerpress/base/file.h"

namespace layerpress::checkpoint {

/// A tensor's name, element type and shape, without its bytes.
struct TensorSpec {
  std::string name;
  at::ScalarType dtype = at::kFloat;
  std::vector<std::int64_t> shape;

  std::int64_t numel() const;
  std::uint64_t nbytes() const;
};

/// A TensorSpec and its position in a file; `offset` counts from the start of the file.
struct StoredTensor : TensorSpec {
  std::uint64_t offset = 0;
};

/// Tensors of a mapped file, by their positions, which lie in the file. Thread-safe.
class MappedTensors {
 public:
  explicit MappedTensors(std::shared_ptr<const MappedFile> file) : file_(std::move(file)) {}

  const std::filesystem::path& path() const { return file_->path(); }
  std::uint64_t file_bytes() const { return file_->size(); }

  /// A read-only view of the mapped bytes (copied only if the offset is not a multiple of the element size). The tensor
  /// keeps the map alive.
  at::Tensor tensor(const StoredTensor& place) const;
  void will_need(const StoredTensor& place) const;
  /// Reads the tensor's bytes into memory and returns when they are there, see MappedFile::fetch.
  void fetch(const StoredTensor& place) const;
  void release(const StoredTensor& place) const;

 private:
  std::shared_ptr<const MappedFile> file_;
};

}  // namespace layerpress::checkpoint
