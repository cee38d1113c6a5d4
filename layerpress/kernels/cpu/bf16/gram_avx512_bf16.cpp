// Tiles of a Gram matrix with AVX-512 bf16 dot products. Tokens are processed in pairs: for each pair of tokens, a
// panel has kPanel columns of 32 bits (the two tokens' values), which are zero where there is no token or column.
#include <immintrin.h>

#include "layerpress/kernels/cpu/gram.h"
#include "layerpress/kernels/cpu/lanes.h"

namespace layerpress::kernels::cpu::LAYERPRESS_ISA {
namespace {

constexpr int kRows = 8;       // rows of a tile held in registers
constexpr int kRegisters = 3;  // registers of 16 columns
static_assert(kGramPanel == kRegisters * 16 && kGramPanel % kRows == 0);

using Pair = std::uint32_t;

/// c[8, 16 * registers] += sum over pairs of 8 left columns times the first right columns. `whole`: all of c exists.
template <int registers, bool whole>
void accumulate_rows(const Pair* left, const Pair* right, std::int64_t pairs, float* c, std::int64_t stride,
                     int existing_rows, const __mmask16* existing) {
  const int rows = whole ? kRows : existing_rows;
  __mmask16 mask[registers];
  for (int n = 0; n < registers; ++n) mask[n] = whole ? static_cast<__mmask16>(0xFFFF) : existing[n];
  __m512 sum[kRows][registers];
  for (int r = 0; r < kRows; ++r)
    for (int n = 0; n < registers; ++n)
      sum[r][n] = r < rows ? _mm512_maskz_loadu_ps(mask[n], c + r * stride + n * 16) : _mm512_setzero_ps();
  for (std::int64_t p = 0; p < pairs; ++p, left += kGramPanel, right += kGramPanel) {
    __m512bh columns[registers];
    for (int n = 0; n < registers; ++n) columns[n] = reinterpret_cast<__m512bh>(_mm512_loadu_si512(right + n * 16));
    for (int r = 0; r < kRows; ++r) {
      const auto row = reinterpret_cast<__m512bh>(_mm512_set1_epi32(static_cast<int>(left[r])));
      for (int n = 0; n < registers; ++n) sum[r][n] = _mm512_dpbf16_ps(sum[r][n], row, columns[n]);
    }
  }
  for (int r = 0; r < rows; ++r)
    for (int n = 0; n < registers; ++n) _mm512_mask_storeu_ps(c + r * stride + n * 16, mask[n], sum[r][n]);
}

/// 16 columns of 16 bits, each in the low half of 32 bits. (Masked, because g++ 12 warns about the unmasked intrinsic.)
__m512i widened(__m256i columns) { return _mm512_maskz_cvtepu16_epi32(0xFFFF, columns); }

__m512i in_high_halves(__m512i columns) { return _mm512_maskz_slli_epi32(0xFFFF, columns, 16); }

/// The mask of existing columns among 16 columns from `first` on; `columns` exist.
__mmask16 mask_of(std::int64_t columns, std::int64_t first) {
  const std::int64_t left = columns - first;
  return static_cast<__mmask16>(left >= 16 ? 0xFFFF : left <= 0 ? 0 : (1 << left) - 1);
}

void pack_panel(const Bits16* x, std::int64_t tokens, std::int64_t stride, std::int64_t columns, std::uint32_t* panel) {
  for (std::int64_t token = 0; token < tokens; token += 2, panel += kGramPanel)
    for (int n = 0; n < kRegisters; ++n) {
      const __mmask16 mask = mask_of(columns, n * 16);
      const auto odd_mask = static_cast<__mmask16>(token + 1 < tokens ? mask : 0);
      const Bits16* place = x + token * stride + n * 16;
      const __m512i even = widened(_mm256_maskz_loadu_epi16(mask, place));
      const __m512i odd = widened(_mm256_maskz_loadu_epi16(odd_mask, place + stride));
      _mm512_storeu_si512(panel + n * 16, _mm512_or_si512(even, in_high_halves(odd)));
    }
}

/// a - b of 16 columns, rounded to bf16, in the low halves.
__m512i rounded_difference(const Bits16* a, const Bits16* b, __mmask16 mask) {
  const auto wide = [mask](const Bits16* x) {
    return _mm512_castsi512_ps(in_high_halves(widened(_mm256_maskz_loadu_epi16(mask, x))));
  };
  return widened(reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(_mm512_sub_ps(wide(a), wide(b)))));
}

void pack_difference(const Bits16* a, const Bits16* b, std::int64_t tokens, std::int64_t stride, std::int64_t columns,
                     std::uint32_t* panel) {
  for (std::int64_t token = 0; token < tokens; token += 2, panel += kGramPanel)
    for (int n = 0; n < kRegisters; ++n) {
      const std::int64_t place = token * stride + n * 16;
      const __mmask16 mask = mask_of(columns, n * 16);
      const auto odd_mask = static_cast<__mmask16>(token + 1 < tokens ? mask : 0);
      const __m512i even = rounded_difference(a + place, b + place, mask);
      const __m512i odd = rounded_difference(a + place + stride, b + place + stride, odd_mask);
      _mm512_storeu_si512(panel + n * 16, _mm512_or_si512(even, in_high_halves(odd)));
    }
}

}  // namespace

void gram_tile_pairs(const GramTile& tile) {
  __mmask16 mask[kRegisters];
  for (int n = 0; n < kRegisters; ++n) mask[n] = mask_of(tile.columns, n * 16);
  constexpr void (*kAccumulate[][2])(const Pair*, const Pair*, std::int64_t, float*, std::int64_t, int,
                                     const __mmask16*) = {{nullptr, nullptr},
                                                          {accumulate_rows<1, false>, accumulate_rows<1, true>},
                                                          {accumulate_rows<2, false>, accumulate_rows<2, true>},
                                                          {accumulate_rows<3, false>, accumulate_rows<3, true>}};
  const std::int64_t registers = (tile.columns + 15) / 16;
  for (std::int64_t row = 0; row < tile.rows; row += kRows) {
    const std::int64_t first = tile.on_diagonal ? row / 16 : 0;  // earlier columns are below the diagonal
    const int rows = static_cast<int>(tile.rows - row < kRows ? tile.rows - row : kRows);
    const bool whole = rows == kRows && tile.columns % 16 == 0;
    kAccumulate[registers - first][whole](tile.left + row, tile.right + first * 16, tile.pairs,
                                          tile.gram + row * tile.stride + first * 16, tile.stride, rows, mask + first);
  }
}

void (*const gram_pack_entry)(const Bits16*, std::int64_t, std::int64_t, std::int64_t, std::uint32_t*) = pack_panel;
void (*const gram_pack_difference_entry)(const Bits16*, const Bits16*, std::int64_t, std::int64_t, std::int64_t,
                                         std::uint32_t*) = pack_difference;

}  // namespace layerpress::kernels::cpu::LAYERPRESS_ISA
