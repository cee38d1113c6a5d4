#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <string_view>
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

/// One safetensors file, mapped. Thread-safe.
/// Layout: u64 little-endian header length | header JSON | data; offsets in the header count from the data's start.
class SafetensorsFile {
 public:
  /// Maps and validates: header length (at most 100 MB and inside the file), JSON, known dtypes (BF16 F16 F32 F64
  /// F8_E4M3 F8_E5M2 F8_E8M0 I8 I16 I32 I64 U8 BOOL), non-negative shapes without overflow, offsets that fit the shape, lie in
  /// the data, do not overlap and leave no hole. Throws CheckpointError naming file and tensor.
  static std::shared_ptr<const SafetensorsFile> open(const std::filesystem::path& path);

  const std::filesystem::path& path() const { return file_->path(); }
  const std::map<std::string, StoredTensor>& tensors() const { return tensors_; }
  const std::map<std::string, std::string>& metadata() const { return metadata_; }
  bool contains(const std::string& name) const { return tensors_.count(name) != 0; }

  /// A read-only view of the mapped bytes (copied only if the offset is not a multiple of the element size). The tensor
  /// keeps the map alive. Throws CheckpointError if there is no tensor `name`.
  at::Tensor tensor(const std::string& name) const;
  /// The same for a position in the file: one of tensors() or a part of one.
  at::Tensor tensor(const StoredTensor& place) const;
  void will_need(const StoredTensor& place) const;
  /// Reads the tensor's bytes into memory and returns when they are there, see MappedFile::fetch.
  void fetch(const StoredTensor& place) const;
  void release(const StoredTensor& place) const;

 private:
  SafetensorsFile() = default;
  std::shared_ptr<const MappedFile> file_;
  std::map<std::string, StoredTensor> tensors_;
  std::map<std::string, std::string> metadata_;
};

/// The safetensors name of a dtype ("BF16"); throws InternalError if it has none.
std::string_view dtype_name(at::ScalarType dtype);

/// The header of a file with `tensors` in this order: 8 length bytes and JSON padded with spaces to a multiple of 8;
/// `__metadata__` is {"format": "pt"} unless other metadata is given.
std::string safetensors_header(const std::vector<TensorSpec>& tensors,
                               const std::map<std::string, std::string>& metadata = {{"format", "pt"}});

/// Writes a small file at once (token files, tests). Atomic. Tensors are made contiguous on the CPU.
void write_safetensors(const std::filesystem::path& path, const std::map<std::string, at::Tensor>& tensors,
                       const std::map<std::string, std::string>& metadata = {{"format", "pt"}});

}  // namespace layerpress::checkpoint
