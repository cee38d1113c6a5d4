#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

#include <cstring>

#include "layerpress/gguf/blocks/block_families.h"

namespace layerpress::gguf {
namespace {

/// Values that are stored one by one.
template <typename Number>
class FloatType final : public BlockType {
 public:
  FloatType(const char* name, std::uint32_t id) : name_(name), id_(id) {}

  std::string name() const override { return name_; }
  std::uint32_t id() const override { return id_; }
  std::int64_t block_values() const override { return 1; }
  std::int64_t block_bytes() const override { return sizeof(Number); }
  bool uses_importance() const override { return false; }

  void decode(const std::uint8_t* blocks, std::int64_t columns, float* row) const override {
    for (std::int64_t j = 0; j < columns; ++j) {
      Number number;
      std::memcpy(&number, blocks + j * block_bytes(), sizeof number);
      row[j] = static_cast<float>(number);
    }
  }

  void round(const float* row, std::int64_t columns, const float*, std::uint8_t* blocks) const override {
    for (std::int64_t j = 0; j < columns; ++j) {
      const auto number = static_cast<Number>(row[j]);
      std::memcpy(blocks + j * block_bytes(), &number, sizeof number);
    }
  }

 private:
  const char* name_;
  std::uint32_t id_;
};

}  // namespace

std::vector<const BlockType*> float_types() {
  static const FloatType<float> f32("F32", 0);
  static const FloatType<c10::Half> f16("F16", 1);
  static const FloatType<c10::BFloat16> bf16("BF16", 30);
  return {&f32, &f16, &bf16};
}

}  // namespace layerpress::gguf
