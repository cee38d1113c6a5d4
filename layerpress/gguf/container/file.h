#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "layerpress/gguf/blocks/block_type.h"
#include "layerpress/gguf/container/metadata.h"

namespace layerpress::gguf {

/// A tensor of a GGUF file.
struct TensorInfo {
  std::string name;
  std::vector<std::int64_t> shape;  ///< as in torch: [rows, columns], and [experts, rows, columns] of stacked experts
  const BlockType* type = nullptr;
  std::uint64_t offset = 0;  ///< from the start of the file's data

  std::int64_t rows() const;     ///< of blocks, over all dimensions but the last
  std::uint64_t nbytes() const;  ///< REQUIRES: the type's blocks divide the columns
};

/// A name from a file for messages, whatever bytes it has.
std::string in_words(const std::string& name);

/// Every tensor begins at a multiple of this, and so does the data.
inline constexpr std::uint64_t kAlignment = 32;

/// Places the tensors one after the other and returns all bytes before the data, padded to the alignment. Throws CheckpointError for a
/// name of more than 63 bytes, which readers refuse.
std::string file_header(const Metadata& metadata, std::span<TensorInfo> tensors);

/// The name of a part of a divided file, as llama-gguf-split names it: "NAME-00001-of-00003.gguf". `number` is from 0.
std::string part_name(const std::string& name, std::size_t number, std::size_t count);

/// What every part of a divided file says of the division.
Metadata part_keys(std::size_t number, std::size_t count, std::size_t tensors);

/// What a file says before its data.
struct FileHeader {
  Metadata metadata;
  std::vector<TensorInfo> tensors;
  std::uint64_t data = 0;  ///< where the data begins
};

/// Reads the header of a file of `size` bytes, version 2 or 3, of which `bytes` is the beginning or all. Throws CheckpointError naming
/// `path` for what is no such file: lengths beyond the bytes, unknown types of values or tensors, overlapping tensors or such that end
/// beyond the file.
FileHeader read_header(const std::byte* bytes, std::uint64_t size, const std::string& path);

}  // namespace layerpress::gguf
