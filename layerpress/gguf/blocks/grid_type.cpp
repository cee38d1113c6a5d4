#include "layerpress/gguf/blocks/grid_type.h"

#include <algorithm>
#include <cmath>

#include "layerpress/gguf/blocks/scale_searches.h"

namespace layerpress::gguf {
namespace {

float sum_of_squares(const float* values, std::int64_t count) {
  float sum = 0;
  for (std::int64_t j = 0; j < count; ++j) sum += values[j] * values[j];
  return sum;
}

}  // namespace

float GridShape::level(int code) const { return levels != nullptr ? levels[code] : static_cast<float>(code + lowest); }

int GridShape::nearest(float value) const {
  if (levels != nullptr) {
    int code = 0;
    for (int i = 1; i < codes; ++i) code += value < 0.5f * (levels[i - 1] + levels[i]) ? 0 : 1;
    return code;
  }
  return std::clamp(nearest_integer(value), lowest, lowest + codes - 1) - lowest;
}

void GridType::decode(const std::uint8_t* blocks, std::int64_t columns, float* row) const {
  float levels[kMostBlockValues];
  for (int code = 0; code < shape_.codes; ++code) levels[code] = shape_.level(code);
  BlockContents contents;
  for (std::int64_t first = 0; first < columns; first += shape_.values, blocks += bytes_) {
    unpack(blocks, contents);
    const std::uint8_t* codes = contents.codes.data();
    float* values = row + first;
    for (int g = 0; g < shape_.groups(); ++g, codes += shape_.group, values += shape_.group) {
      const float scale = contents.scale_of(g), minimum = contents.minimum_of(g);
      for (int j = 0; j < shape_.group; ++j) values[j] = scale * levels[codes[j]] - minimum;
    }
  }
}

void GridType::choose_blocks(const float* values, const float* weights, std::span<BlockContents> blocks) const {
  for (std::size_t b = 0; b < blocks.size(); ++b) {
    const std::size_t first = b * static_cast<std::size_t>(shape_.values);
    choose(values + first, weights + first, blocks[b]);
  }
}

void GridType::round(const float* row, std::int64_t columns, const float* importance, std::uint8_t* blocks) const {
  const float row_squares = importance != nullptr && rule_.of_row ? sum_of_squares(row, columns) : 0;
  const float spread = row_squares / static_cast<float>(columns);
  float weights[kBlocksTogether * kMostBlockValues];
  std::array<BlockContents, kBlocksTogether> contents;
  for (std::int64_t first = 0; first < columns; first += kBlocksTogether * shape_.values) {
    const auto count = std::min<std::int64_t>(kBlocksTogether, (columns - first) / shape_.values);
    const std::span<BlockContents> some(contents.data(), static_cast<std::size_t>(count));
    std::fill(some.begin(), some.end(), BlockContents());
    for (std::int64_t b = 0; b < count; ++b) {
      const float* values = row + first + b * shape_.values;
      if (importance != nullptr)
        weigh(values, importance + first + b * shape_.values, spread, weights + b * shape_.values);
      else
        choose_unweighted(values, contents[static_cast<std::size_t>(b)]);
    }
    if (importance != nullptr) choose_blocks(row + first, weights, some);
    for (std::int64_t b = 0; b < count; ++b, blocks += bytes_) pack(contents[static_cast<std::size_t>(b)], blocks);
  }
}

void GridType::weigh(const float* values, const float* importance, float row_spread, float* weights) const {
  if (rule_.alone) {
    std::copy_n(importance, shape_.values, weights);
    return;
  }
  const float spread = rule_.of_row ? row_spread : rule_.factor * sum_of_squares(values, shape_.values) / rule_.divisor;
  for (int j = 0; j < shape_.values; ++j) weights[j] = importance[j] * std::sqrt(spread + values[j] * values[j]);
}

void GridType::choose_codes(const float* values, BlockContents& contents) const {
  for (int g = 0; g < shape_.groups(); ++g) {
    const float scale = contents.scale_of(g), minimum = contents.minimum_of(g);
    if (scale == 0) continue;
    for (int j = g * shape_.group; j < (g + 1) * shape_.group; ++j)
      contents.codes[static_cast<std::size_t>(j)] =
          static_cast<std::uint8_t>(shape_.nearest((values[j] + minimum) / scale));
  }
}

}  // namespace layerpress::gguf
