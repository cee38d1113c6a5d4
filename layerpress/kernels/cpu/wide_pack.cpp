// Panels of fp32 values for wide_tile(), made from values of any floating type.
#include "layerpress/kernels/cpu/lanes.h"
#include "layerpress/kernels/cpu/wide_tile.h"

namespace layerpress::kernels::cpu::LAYERPRESS_ISA {
namespace {

constexpr std::int64_t kSide = 8;  // side of the squares that are transposed at once
typedef float Eight __attribute__((vector_size(kSide * sizeof(float))));

template <typename T>
const T* row_of(const StoredRows& rows, std::int64_t row) {
  return static_cast<const T*>(rows.values) + row * rows.stride;
}

typedef std::uint16_t EightHalves __attribute__((vector_size(kSide * sizeof(std::uint16_t))));
typedef std::uint32_t EightWords __attribute__((vector_size(kSide * sizeof(std::uint32_t))));

// widen() of lanes.h for eight values at once; results by reference, because not all sets return them in a register.
void widen_eight(const Bits16* values, Eight& result) {
  EightHalves stored;
  std::memcpy(&stored, values, sizeof(stored));
  result = reinterpret_cast<Eight>(__builtin_convertvector(stored, EightWords) << 16);
}
void widen_eight(const Half* values, Eight& result) {
  EightHalves stored;
  std::memcpy(&stored, values, sizeof(stored));
  const EightWords words = __builtin_convertvector(stored, EightWords);
  const EightWords magnitude = words & 0x7FFFu, sign = (words & 0x8000u) << 16;
  const Eight scaled = reinterpret_cast<Eight>(magnitude << 13) * bit_cast<float>((127u + 112u) << 23);
  const EightWords wide = magnitude >= 0x7C00u ? (magnitude << 13) | 0x7F800000u : reinterpret_cast<EightWords>(scaled);
  result = reinterpret_cast<Eight>(wide | sign);
}
void widen_eight(const float* values, Eight& result) { std::memcpy(&result, values, sizeof(result)); }

/// count of up to 8 values, zero behind them.
template <typename T>
void widen_some(const T* values, std::int64_t count, Eight& result) {
  if (count == kSide) return widen_eight(values, result);
  T stored[kSide] = {};
  std::memcpy(stored, values, static_cast<std::size_t>(count) * sizeof(T));
  widen_eight(stored, result);
}

/// rows[i] becomes what stood in place i of every row.
[[gnu::always_inline]] inline void transpose(Eight (&rows)[kSide]) {
  Eight other[kSide];
  for (int i = 0; i < kSide; i += 2) {
    other[i] = __builtin_shufflevector(rows[i], rows[i + 1], 0, 8, 1, 9, 4, 12, 5, 13);
    other[i + 1] = __builtin_shufflevector(rows[i], rows[i + 1], 2, 10, 3, 11, 6, 14, 7, 15);
  }
  for (int i = 0; i < kSide; i += 4) {
    rows[i] = __builtin_shufflevector(other[i], other[i + 2], 0, 1, 8, 9, 4, 5, 12, 13);
    rows[i + 1] = __builtin_shufflevector(other[i], other[i + 2], 2, 3, 10, 11, 6, 7, 14, 15);
    rows[i + 2] = __builtin_shufflevector(other[i + 1], other[i + 3], 0, 1, 8, 9, 4, 5, 12, 13);
    rows[i + 3] = __builtin_shufflevector(other[i + 1], other[i + 3], 2, 3, 10, 11, 6, 7, 14, 15);
  }
  for (int i = 0; i < 4; ++i) {
    other[i] = __builtin_shufflevector(rows[i], rows[i + 4], 0, 1, 2, 3, 8, 9, 10, 11);
    other[i + 4] = __builtin_shufflevector(rows[i], rows[i + 4], 4, 5, 6, 7, 12, 13, 14, 15);
  }
  for (int i = 0; i < kSide; ++i) rows[i] = other[i];
}

/// Columns [first, first + kSide) of the panel, all of which exist, for the first steps of the depth, a multiple of kSide.
template <typename T>
void pack_squares(const StoredRows& rows, std::int64_t first, std::int64_t depth, std::int64_t width, float* panel) {
  const T* values = row_of<T>(rows, first);
  for (std::int64_t d = 0; d < depth; d += kSide) {
    Eight block[kSide];
    for (std::int64_t r = 0; r < kSide; ++r) widen_eight(values + r * rows.stride + d, block[r]);
    transpose(block);
    for (std::int64_t i = 0; i < kSide; ++i) std::memcpy(panel + (d + i) * width + first, &block[i], sizeof(Eight));
  }
}

/// Columns [first, first + lanes) of the panel, of which rows.count may exist.
template <typename T>
void pack_lanes(const StoredRows& rows, std::int64_t first, std::int64_t depth, std::int64_t width, float* panel) {
  const std::int64_t lanes = width - first < kSide ? width - first : kSide;
  std::int64_t squares = 0;
  if (lanes == kSide && first + kSide <= rows.count) {
    squares = depth / kSide * kSide;
    pack_squares<T>(rows, first, squares, width, panel);
  }
  for (std::int64_t d = squares; d < depth; d += kSide) {
    const std::int64_t count = depth - d < kSide ? depth - d : kSide;
    Eight block[kSide] = {};
    for (std::int64_t r = 0; r < lanes && first + r < rows.count; ++r)
      widen_some(row_of<T>(rows, first + r) + d, count, block[r]);
    transpose(block);
    for (std::int64_t i = 0; i < count; ++i)
      std::memcpy(panel + (d + i) * width + first, &block[i], static_cast<std::size_t>(lanes) * sizeof(float));
  }
}

template <typename T>
void pack_rows(const StoredRows& rows, std::int64_t depth, std::int64_t width, float* panel) {
  for (std::int64_t first = 0; first < width; first += kSide) pack_lanes<T>(rows, first, depth, width, panel);
}

template <typename T>
void pack_columns(const StoredRows& rows, std::int64_t columns, float* panel) {
  for (std::int64_t row = 0; row < rows.count; ++row, panel += kGramPanel) {
    const T* values = row_of<T>(rows, row);
    for (std::int64_t c = 0; c < columns; ++c) panel[c] = widen(values[c]);
    for (std::int64_t c = columns; c < kGramPanel; ++c) panel[c] = 0;
  }
}

template <typename T>
void pack_difference(const StoredRows& minuend, const StoredRows& rows, std::int64_t columns, float* panel) {
  for (std::int64_t row = 0; row < rows.count; ++row, panel += kGramPanel) {
    const T *from = row_of<T>(minuend, row), *values = row_of<T>(rows, row);
    for (std::int64_t c = 0; c < columns; ++c) panel[c] = widen(from[c]) - widen(values[c]);
    for (std::int64_t c = columns; c < kGramPanel; ++c) panel[c] = 0;
  }
}

}  // namespace

void wide_pack_rows(const StoredRows& rows, std::int64_t depth, std::int64_t width, float* panel) {
  with_type(rows.type, [&](auto type) { pack_rows<decltype(type)>(rows, depth, width, panel); });
}

void wide_pack_columns(const StoredRows& rows, std::int64_t columns, float* panel) {
  with_type(rows.type, [&](auto type) { pack_columns<decltype(type)>(rows, columns, panel); });
}

void wide_pack_difference(const StoredRows& minuend, const StoredRows& rows, std::int64_t columns, float* panel) {
  with_type(rows.type, [&](auto type) { pack_difference<decltype(type)>(minuend, rows, columns, panel); });
}

}  // namespace layerpress::kernels::cpu::LAYERPRESS_ISA
