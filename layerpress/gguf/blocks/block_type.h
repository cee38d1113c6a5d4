#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace layerpress::gguf {

/// One of ggml's types: a row of values is stored as blocks, each of which has the same number of values and of bytes.
class BlockType {
 public:
  BlockType() = default;
  BlockType(const BlockType&) = delete;
  BlockType& operator=(const BlockType&) = delete;
  virtual ~BlockType() = default;

  virtual std::string name() const = 0;  ///< as ggml writes it, such as "Q4_K"
  virtual std::uint32_t id() const = 0;  ///< of tensors in a file, such as 12
  virtual std::int64_t block_values() const = 0;
  virtual std::int64_t block_bytes() const = 0;
  /// Whether rounding looks at importance.
  virtual bool uses_importance() const = 0;

  /// Writes the values of a row's blocks; `columns` is a multiple of block_values().
  virtual void decode(const std::uint8_t* blocks, std::int64_t columns, float* row) const = 0;

  /// Rounds a row of finite values to the blocks that llama-quantize chooses. `importance`: null or, for each of the `columns`
  /// columns, the mean square of what the column is multiplied with.
  virtual void round(const float* row, std::int64_t columns, const float* importance, std::uint8_t* blocks) const = 0;

  double bits_per_value() const {
    return 8.0 * static_cast<double>(block_bytes()) / static_cast<double>(block_values());
  }
  /// Bytes of a row of `columns` values, a multiple of block_values().
  std::int64_t row_bytes(std::int64_t columns) const { return columns / block_values() * block_bytes(); }
};

/// All types, by id.
const std::vector<const BlockType*>& block_types();
std::vector<std::string> block_type_names();

/// The type of a name or an id; null if no type has it.
const BlockType* find_block_type(const std::string& name);
const BlockType* find_block_type(std::uint32_t id);

}  // namespace layerpress::gguf
