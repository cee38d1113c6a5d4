#include "layerpress/kernels/cpu/lanes.h"
#include "layerpress/kernels/cpu/quantization.h"

namespace layerpress::kernels::cpu::LAYERPRESS_ISA {
namespace {

constexpr std::int64_t kSide = 16;

/// Rows of kSide values.
template <typename T>
using Square = T[kSide * kSide];

/// Interleaves the first half with the second. Applied four times, it transposes a square of 16 by 16. A single flat
/// loop, because the compiler does not vectorize a nested one fully.
template <typename T>
inline void interleave(const Square<T>& from, Square<T>& to) {
  constexpr std::int64_t kHalf = kSide * kSide / 2;
  for (std::int64_t i = 0; i < kHalf; ++i) {
    to[2 * i] = from[i];
    to[2 * i + 1] = from[i + kHalf];
  }
}

template <typename T>
inline void transpose(Square<T>& square) {
  alignas(64) Square<T> other;
  interleave(square, other);
  interleave(other, square);
  interleave(square, other);
  interleave(other, square);
}

/// Loads columns [begin, begin + kSide) of kSide rows; rows from `rows` on repeat the last one.
inline void load_square(const float* weights, std::int64_t stride, std::int64_t rows, Square<float>& square) {
  for (std::int64_t lane = 0; lane < kSide; ++lane)
    std::memcpy(square + lane * kSide, weights + (lane < rows ? lane : rows - 1) * stride, kSide * sizeof(float));
}

/// Loads four codes of each row, which are moved as one value.
inline void load_quads(const std::uint8_t* codes, Square<std::uint32_t>& square) {
  for (std::int64_t i = 0; i < kSide; ++i)
    for (std::int64_t lane = 0; lane < kSide; ++lane) {
      std::uint32_t quad = 0;
      for (std::int64_t k = 0; k < 4; ++k)
        quad |= static_cast<std::uint32_t>(codes[(4 * i + k) * kColumnTile + lane]) << (8 * k);
      square[i * kSide + lane] = quad;
    }
}

}  // namespace

void column_tile_load(const float* weights, std::int64_t rows, std::int64_t columns, const std::int64_t* place,
                      float* tile) {
  const std::int64_t whole = columns / kSide * kSide;
  alignas(64) Square<float> square;
  for (std::int64_t first = 0; first < kColumnTile; first += kSide) {
    // Lanes beyond the last row repeat it, even whole squares of them.
    const std::int64_t row = first < rows ? first : rows - 1;
    for (std::int64_t begin = 0; begin < whole; begin += kSide) {
      load_square(weights + row * columns + begin, columns, rows - row, square);
      transpose(square);
      for (std::int64_t j = 0; j < kSide; ++j)
        std::memcpy(tile + place[begin + j] * kColumnTile + first, square + j * kSide, kSide * sizeof(float));
    }
  }
  for (std::int64_t j = whole; j < columns; ++j)
    for (std::int64_t lane = 0; lane < kColumnTile; ++lane)
      tile[place[j] * kColumnTile + lane] = weights[(lane < rows ? lane : rows - 1) * columns + j];
}

void column_tile_store(const std::int8_t* tile, std::int64_t rows, std::int64_t columns, std::int8_t* codes) {
  constexpr std::int64_t kRun = 4 * kSide;
  const std::int64_t whole = columns / kRun * kRun;
  alignas(64) Square<std::uint32_t> square;
  for (std::int64_t first = 0; first < rows; first += kSide)
    for (std::int64_t begin = 0; begin < whole; begin += kRun) {
      load_quads(reinterpret_cast<const std::uint8_t*>(tile) + begin * kColumnTile + first, square);
      transpose(square);
      for (std::int64_t lane = 0; lane < kSide && first + lane < rows; ++lane)
        std::memcpy(codes + (first + lane) * columns + begin, square + lane * kSide, kRun);
    }
  for (std::int64_t lane = 0; lane < rows; ++lane)
    for (std::int64_t j = whole; j < columns; ++j) codes[lane * columns + j] = tile[j * kColumnTile + lane];
}

}  // namespace layerpress::kernels::cpu::LAYERPRESS_ISA
