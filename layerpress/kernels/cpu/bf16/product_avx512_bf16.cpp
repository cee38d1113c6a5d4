// Tiles of x weightᵀ with AVX-512 bf16 dot products. Features are processed in pairs, which are adjacent in x and in
// the weight: for each pair of features, a panel has this pair of each of kProductPanel rows of the weight.
#include <immintrin.h>

#include "layerpress/kernels/cpu/lanes.h"
#include "layerpress/kernels/cpu/product.h"

namespace layerpress::kernels::cpu::LAYERPRESS_ISA {
namespace {

constexpr int kRows = 12;      // rows of x in registers
constexpr int kRegisters = 2;  // registers of 16 outputs
constexpr int kLanes = 16;
static_assert(kProductPanel == kRegisters * kLanes && kProductHalf == kLanes);

using Pair = std::uint32_t;

/// sums[rows, 32] (+)= rows of x times the panel.
template <int rows>
void multiply_rows(const ProductTile& tile, std::int64_t first_row) {
  __m512 sum[rows][kRegisters];
  float* sums = tile.sums + first_row * kProductPanel;
  for (int r = 0; r < rows; ++r)
    for (int n = 0; n < kRegisters; ++n)
      sum[r][n] = tile.adds ? _mm512_load_ps(sums + r * kProductPanel + n * kLanes) : _mm512_setzero_ps();
  const Bits16* x = tile.x + first_row * tile.stride;
  const Pair* panel = tile.panel;
  for (std::int64_t p = 0; p < tile.pairs; ++p, panel += kProductPanel, x += 2) {
    __m512bh columns[kRegisters];
    for (int n = 0; n < kRegisters; ++n) columns[n] = reinterpret_cast<__m512bh>(_mm512_load_si512(panel + n * kLanes));
    for (int r = 0; r < rows; ++r) {
      std::int32_t pair;
      std::memcpy(&pair, x + r * tile.stride, sizeof(pair));
      const auto row = reinterpret_cast<__m512bh>(_mm512_set1_epi32(pair));
      for (int n = 0; n < kRegisters; ++n) sum[r][n] = _mm512_dpbf16_ps(sum[r][n], row, columns[n]);
    }
  }
  for (int r = 0; r < rows; ++r)
    for (int n = 0; n < kRegisters; ++n) _mm512_store_ps(sums + r * kProductPanel + n * kLanes, sum[r][n]);
}

constexpr void (*kMultiply[])(const ProductTile&, std::int64_t) = {
    nullptr,           multiply_rows<1>,  multiply_rows<2>, multiply_rows<3>, multiply_rows<4>,
    multiply_rows<5>,  multiply_rows<6>,  multiply_rows<7>, multiply_rows<8>, multiply_rows<9>,
    multiply_rows<10>, multiply_rows<11>, multiply_rows<12>};

/// Selects eight 128-bit quarters of two registers. (Masked, because g++ 12 warns about the unmasked intrinsic.)
template <int choice>
__m512i quarters(__m512i a, __m512i b) {
  return _mm512_maskz_shuffle_i32x4(0xFFFF, a, b, choice);
}

/// Transposes 16 x 16 pairs: rows[i] becomes element i of every row.
[[gnu::always_inline]] inline void transpose(__m512i (&rows)[kLanes]) {
  __m512i other[kLanes];
  for (int i = 0; i < kLanes; i += 2) {
    other[i] = _mm512_maskz_unpacklo_epi32(0xFFFF, rows[i], rows[i + 1]);
    other[i + 1] = _mm512_maskz_unpackhi_epi32(0xFFFF, rows[i], rows[i + 1]);
  }
  for (int i = 0; i < kLanes; i += 4) {
    rows[i] = _mm512_maskz_unpacklo_epi64(0xFF, other[i], other[i + 2]);
    rows[i + 1] = _mm512_maskz_unpackhi_epi64(0xFF, other[i], other[i + 2]);
    rows[i + 2] = _mm512_maskz_unpacklo_epi64(0xFF, other[i + 1], other[i + 3]);
    rows[i + 3] = _mm512_maskz_unpackhi_epi64(0xFF, other[i + 1], other[i + 3]);
  }
  constexpr int kEven = 0x88, kOdd = 0xDD;
  for (int i = 0; i < 4; ++i) {
    other[i] = quarters<kEven>(rows[i], rows[4 + i]);
    other[4 + i] = quarters<kOdd>(rows[i], rows[4 + i]);
    other[8 + i] = quarters<kEven>(rows[8 + i], rows[12 + i]);
    other[12 + i] = quarters<kOdd>(rows[8 + i], rows[12 + i]);
  }
  for (int i = 0; i < 4; ++i) {
    rows[i] = quarters<kEven>(other[i], other[8 + i]);
    rows[4 + i] = quarters<kEven>(other[4 + i], other[12 + i]);
    rows[8 + i] = quarters<kOdd>(other[i], other[8 + i]);
    rows[12 + i] = quarters<kOdd>(other[4 + i], other[12 + i]);
  }
}

void pack_half(const Bits16* weight, std::int64_t stride, std::int64_t rows, std::int64_t pairs, Pair* panel) {
  for (std::int64_t p = 0; p < pairs; p += kLanes, weight += 2 * kLanes) {
    const std::int64_t count = pairs - p < kLanes ? pairs - p : kLanes;
    const auto mask = static_cast<__mmask16>((1u << count) - 1);
    __m512i block[kLanes];
    for (int r = 0; r < kLanes; ++r)
      block[r] = r < rows ? _mm512_maskz_loadu_epi32(mask, weight + r * stride) : _mm512_setzero_si512();
    transpose(block);
    for (std::int64_t i = 0; i < count; ++i, panel += kProductPanel) _mm512_store_si512(panel, block[i]);
  }
}

}  // namespace

/// Rows are divided evenly, because a tile of few rows takes almost as long as one of many.
void product_tile_pairs(const ProductTile& tile) {
  for (std::int64_t first = 0, left = (tile.rows + kRows - 1) / kRows; left > 0; --left) {
    const std::int64_t rows = (tile.rows - first + left - 1) / left;
    kMultiply[rows](tile, first);
    first += rows;
  }
}

void transpose_pairs(const std::uint32_t* from, std::int64_t stride, std::uint32_t* to) {
  __m512i rows[kLanes];
  for (int i = 0; i < kLanes; ++i) rows[i] = _mm512_loadu_si512(from + i * stride);
  transpose(rows);
  for (int i = 0; i < kLanes; ++i) _mm512_store_si512(to + i * kLanes, rows[i]);
}

void (*const product_pack_entry)(const Bits16*, std::int64_t, std::int64_t, std::int64_t, std::uint32_t*) = pack_half;

}  // namespace layerpress::kernels::cpu::LAYERPRESS_ISA
