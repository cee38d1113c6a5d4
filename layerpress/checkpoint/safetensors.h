#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "layerpress/checkpoint/mapped_tensors.h"

namespace layerpress::checkpoint {

/// One safetensors file, mapped. Thread-safe.
/// Layout: u64 little-endian header length | header JSON | data; offsets in the header count from the data's start.
class SafetensorsFile : public MappedTensors {
 public:
  /// Maps and validates: header length (at most 100 MB and inside the file), JSON, known dtypes (BF16 F16 F32 F64
  /// F8_E4M3 F8_E5M2 F8_E8M0 I8 I16 I32 I64 U8 BOOL), non-negative shapes without overflow, offsets that fit the shape, lie in
  /// the data, do not overlap and leave no hole. Throws CheckpointError naming file and tensor.
  static std::shared_ptr<const SafetensorsFile> open(const std::filesystem::path& path);

  const std::map<std::string, StoredTensor>& tensors() const { return tensors_; }
  const std::map<std::string, std::string>& metadata() const { return metadata_; }
  bool contains(const std::string& name) const { return tensors_.count(name) != 0; }

  /// As MappedTensors::tensor. Throws CheckpointError if there is no tensor `name`.
  at::Tensor tensor(const std::string& name) const;
  using MappedTensors::tensor;

 private:
  explicit SafetensorsFile(std::shared_ptr<const MappedFile> file) : MappedTensors(std::move(file)) {}
  std::map<std::string, StoredTensor> tensors_;
  std::map<std::string, std::string> metadata_;
};

/// The safetensors name of a dtype ("BF16"); throws InternalError if it has none.
std::string_view dtype_name(at::ScalarType dtype);

/// A tensor's member in a header, behind another one; the offsets count from the data's start.
std::string safetensors_entry(const TensorSpec& tensor, std::uint64_t begin, std::uint64_t end);

/// The header of a file with `tensors` in this order: 8 length bytes and JSON padded with spaces to a multiple of 8;
/// `__metadata__` is {"format": "pt"} unless other metadata is given.
std::string safetensors_header(const std::vector<TensorSpec>& tensors,
                               const std::map<std::string, std::string>& metadata = {{"format", "pt"}});

/// Writes a small file at once (token files, tests). Atomic. Tensors are made contiguous on the CPU.
void write_safetensors(const std::filesystem::path& path, const std::map<std::string, at::Tensor>& tensors,
                       const std::map<std::string, std::string>& metadata = {{"format", "pt"}});

}  // namespace layerpress::checkpoint
