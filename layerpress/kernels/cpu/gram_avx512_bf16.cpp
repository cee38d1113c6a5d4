// Tiles of a Gram matrix on AVX-512 bf16 dot products. Tokens are taken in pairs: a panel holds, for each pair of
// tokens, kPanel columns of 32 bits (the two tokens' values), zero where there is no token or column.
#include <immintrin.h>

#include "layerpress/kernels/cpu/gram.h"
#include "layerpress/kernels/cpu/lanes.h"

namespace layerpress::kernels::cpu::LAYERPRESS_ISA {
namespace {

constexpr int kRows = 8;       // rows of a tile held in registers
constexpr int kRegisters = 3;  // registers of 16 columns
static_assert(kGramPanel == kRegisters * 16 && kGramPanel % kRows == 0);

using Pair = std::uint32_t;

/// c[8, 48] += sum over pairs of left columns [first, first + 8) times all 48 right columns.
void accumulate_rows(const Pair* left, const Pair* right, std::int64_t pairs, float* c, std::int64_t stride, int rows,
                     const __mmask16* mask) {
  __m512 sum[kRows][kRegisters];
  for (int r = 0; r < kRows; ++r)
    for (int n = 0; n < kRegisters; ++n)
      sum[r][n] = r < rows ? _mm512_maskz_loadu_ps(mask[n], c + r * stride + n * 16) : _mm512_setzero_ps();
  for (std::int64_t p = 0; p < pairs; ++p, left += kGramPanel, right += kGramPanel) {
    __m512bh columns[kRegisters];
    for (int n = 0; n < kRegisters; ++n) columns[n] = reinterpret_cast<__m512bh>(_mm512_loadu_si512(right + n * 16));
    for (int r = 0; r < kRows; ++r) {
      const auto row = reinterpret_cast<__m512bh>(_mm512_set1_epi32(static_cast<int>(left[r])));
      for (int n = 0; n < kRegisters; ++n) sum[r][n] = _mm512_dpbf16_ps(sum[r][n], row, columns[n]);
    }
  }
  for (int r = 0; r < rows; ++r)
    for (int n = 0; n < kRegisters; ++n) _mm512_mask_storeu_ps(c + r * stride + n * 16, mask[n], sum[r][n]);
}

void pack_panel(const Bits16* x, std::int64_t tokens, std::int64_t stride, std::int64_t columns, std::uint32_t* panel) {
  for (std::int64_t token = 0; token < tokens; token += 2, panel += kGramPanel) {
    const Bits16* even = x + token * stride;
    const bool has_odd = token + 1 < tokens;
    for (std::int64_t c = 0; c < columns; ++c)
      panel[c] = even[c] | (static_cast<Pair>(has_odd ? even[stride + c] : 0) << 16);
    for (std::int64_t c = columns; c < kGramPanel; ++c) panel[c] = 0;
  }
}

void multiply_panels(const GramTile& tile) {
  __mmask16 mask[kRegisters];
  for (int n = 0; n < kRegisters; ++n) {
    const std::int64_t left = tile.columns - n * 16;
    mask[n] = static_cast<__mmask16>(left >= 16 ? 0xFFFF : left <= 0 ? 0 : (1 << left) - 1);
  }
  for (std::int64_t row = 0; row < tile.rows; row += kRows)
    accumulate_rows(tile.left + row, tile.right, tile.pairs, tile.gram + row * tile.stride, tile.stride,
                    static_cast<int>(tile.rows - row < kRows ? tile.rows - row : kRows), mask);
}

}  // namespace

void (*const gram_pack_entry)(const Bits16*, std::int64_t, std::int64_t, std::int64_t, std::uint32_t*) = pack_panel;
void (*const gram_tile_entry)(const GramTile&) = multiply_panels;

}  // namespace layerpress::kernels::cpu::LAYERPRESS_ISA
