#include "layerpress/kernels/products/gram_tiles.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "layerpress/kernels/products/gram.h"
#include "layerpress/kernels/products/product.h"
#include "layerpress/kernels/tasks.h"

namespace layerpress::kernels {
namespace {

// Tokens packed at once: two panels of them stay in the second-level cache, and threads meet seldom.
constexpr std::int64_t kFewestPacked = 512, kMostPacked = 2048;
constexpr std::int64_t kPackedElements = 1 << 20;

std::int64_t packed_tokens(std::int64_t features) {
  const std::int64_t fitting = kPackedElements / features / kFewestPacked * kFewestPacked;
  return std::clamp(fitting, kFewestPacked, kMostPacked);
}

static_assert(kGramRowStep % cpu::kGramPanel == 0);

/// Places of 32 bits that a panel has for some tokens: a pair of values, or one widened.
std::int64_t panel_places(std::int64_t tokens, bool pairs) {
  return (pairs ? (tokens + 1) / 2 : tokens) * cpu::kGramPanel;
}

/// Panels of columns, as rows or columns of a matrix of tiles.
struct Panels {
  std::int64_t first, last;
};

Panels panels_of(const GramRows& rows) {
  return {rows.first / cpu::kGramPanel, (rows.last + cpu::kGramPanel - 1) / cpu::kGramPanel};
}

/// A panel is narrower than a row, and the processor's own prefetching ends at a page.
void prefetch_rows(const cpu::StoredRows& rows, std::int64_t width, std::int64_t element_size) {
  constexpr std::int64_t kLine = 64;
  const auto* values = static_cast<const std::byte*>(rows.values);
  for (std::int64_t row = 0; row < rows.count; ++row, values += rows.stride * element_size)
    for (std::int64_t i = 0; i < width * element_size; i += kLine) __builtin_prefetch(values + i);
}

/// Some panels of a chunk of tokens, packed.
class PackedChunk {
 public:
  PackedChunk(const at::Tensor& x, bool pairs, std::int64_t most_tokens, const Panels& panels)
      : features_(x.size(1)),
        pairs_(pairs),
        panel_size_(panel_places(std::min(most_tokens, x.size(0)), pairs_)),
        panels_(panels),
        memory_(at::empty({(panels.last - panels.first) * panel_size_}, at::kInt)) {}

  /// Packs tokens [first, first + count) of x, or of minuend - x when there is a minuend.
  void pack(const at::Tensor& minuend, const at::Tensor& x, std::int64_t first, std::int64_t count) {
    const auto size = static_cast<std::int64_t>(x.element_size());
    // By tokens, so that rows of x are read from one end to the other.
    for_each_task((count + kPackedTokens - 1) / kPackedTokens, [&](std::int64_t task) {
      const std::int64_t token = task * kPackedTokens, tokens = std::min(kPackedTokens, count - token);
      cpu::StoredRows own = stored_rows(x, first + token, tokens), from;
      prefetch_rows(own, features_, size);
      if (minuend.defined()) {
        from = stored_rows(minuend, first + token, tokens);
        prefetch_rows(from, features_, size);
      }
      const std::byte *own_values = bytes_of(own), *from_values = bytes_of(from);
      for (std::int64_t p = panels_.first; p < panels_.last; ++p) {
        const std::int64_t skipped = p * cpu::kGramPanel * size;
        own.values = own_values + skipped;
        if (minuend.defined()) from.values = from_values + skipped;
        pack_panel(from, own, width(p), panel(p) + panel_places(token, pairs_));
      }
    });
  }

  const Panels& panels() const { return panels_; }
  std::int64_t width(std::int64_t p) const { return std::min(cpu::kGramPanel, features_ - p * cpu::kGramPanel); }
  std::int32_t* panel(std::int64_t p) const {
    return memory_.data_ptr<std::int32_t>() + (p - panels_.first) * panel_size_;
  }
  bool pairs() const { return pairs_; }

 private:
  static constexpr std::int64_t kPackedTokens = 32;  // by one task; even, since tokens are packed in pairs

  static const std::byte* bytes_of(const cpu::StoredRows& rows) { return static_cast<const std::byte*>(rows.values); }

  void pack_panel(const cpu::StoredRows& from, const cpu::StoredRows& own, std::int64_t columns,
                  std::int32_t* panel) const {
    const cpu::Table& kernels = cpu::table();
    if (!pairs_) {
      auto* wide = reinterpret_cast<float*>(panel);
      if (from.values == nullptr) return kernels.wide_pack_columns(own, columns, wide);
      return kernels.wide_pack_difference(from, own, columns, wide);
    }
    auto* packed = reinterpret_cast<std::uint32_t*>(panel);
    const auto* values = static_cast<const cpu::Bits16*>(own.values);
    if (from.values == nullptr) return kernels.gram_pack(values, own.count, own.stride, columns, packed);
    kernels.gram_pack_difference(static_cast<const cpu::Bits16*>(from.values), values, own.count, own.stride, columns,
                                 packed);
  }

  std::int64_t features_;
  bool pairs_;
  std::int64_t panel_size_;
  Panels panels_;
  at::Tensor memory_;
};

/// A tile's place: left panel, right panel.
using PanelPair = std::pair<std::int64_t, std::int64_t>;

/// By bands of right panels, which stay in the second-level cache for all left ones.
std::vector<PanelPair> tiles_of(const Panels& left, const Panels& right, bool triangle) {
  constexpr std::int64_t kBand = 8;
  std::vector<PanelPair> tiles;
  for (std::int64_t band = right.first; band < right.last; band += kBand)
    for (std::int64_t i = left.first; i < left.last; ++i)
      for (std::int64_t j = triangle ? std::max(i, band) : band; j < std::min(band + kBand, right.last); ++j)
        tiles.emplace_back(i, j);
  return tiles;
}

void multiply_pairs_tile(const PackedChunk& left, const PackedChunk& right, const PanelPair& tile, std::int64_t tokens,
                         at::Tensor& target) {
  const auto [i, j] = tile;
  const std::int64_t stride = target.stride(0);
  cpu::table().gram_tile({.left = reinterpret_cast<const std::uint32_t*>(left.panel(i)),
                          .right = reinterpret_cast<const std::uint32_t*>(right.panel(j)),
                          .pairs = (tokens + 1) / 2,
                          .gram = target.data_ptr<float>() + (i * stride + j) * cpu::kGramPanel,
                          .stride = stride,
                          .rows = left.width(i),
                          .columns = right.width(j),
                          .on_diagonal = &left == &right && i == j});
}

void multiply_wide_tile(const PackedChunk& left, const PackedChunk& right, const PanelPair& tile, std::int64_t tokens,
                        at::Tensor& target) {
  const auto [i, j] = tile;
  const std::int64_t stride = target.stride(0);
  cpu::table().wide_tile({.left = reinterpret_cast<const float*>(left.panel(i)),
                          .left_stride = cpu::kGramPanel,
                          .left_group = cpu::table().wide_rows,
                          .right = reinterpret_cast<const float*>(right.panel(j)),
                          .right_stride = cpu::kGramPanel,
                          .right_block = cpu::kWideColumns,
                          .depth = tokens,
                          .sums = target.data_ptr<float>() + (i * stride + j) * cpu::kGramPanel,
                          .stride = stride,
                          .rows = left.width(i),
                          .columns = right.width(j),
                          .adds = true,
                          .on_diagonal = &left == &right && i == j});
}

/// Adds the products of packed panels to `target`, one task per tile.
void multiply_tiles(const PackedChunk& left, const PackedChunk& right, const std::vector<PanelPair>& tiles,
                    std::int64_t tokens, at::Tensor& target) {
  for_each_task(static_cast<std::int64_t>(tiles.size()), [&](std::int64_t t) {
    (left.pairs() ? multiply_pairs_tile : multiply_wide_tile)(left, right, tiles[static_cast<std::size_t>(t)], tokens,
                                                              target);
  });
}

/// Calls function(first, count) for the chunks of some tokens.
template <typename Function>
void for_each_chunk(std::int64_t tokens, std::int64_t most, Function&& function) {
  for (std::int64_t first = 0; first < tokens; first += most) function(first, std::min(most, tokens - first));
}

}  // namespace

void accumulate_triangle(at::Tensor& gram, const at::Tensor& x, const GramRows& rows) {
  const std::int64_t features = x.size(1), most = packed_tokens(features);
  // Packed once into panels of columns that are on both sides of the triangle's tiles.
  PackedChunk packed(x, multiplies_pairs(x.scalar_type()), most, panels_of({rows.first, features}));
  const std::vector<PanelPair> tiles = tiles_of(panels_of(rows), packed.panels(), /*triangle=*/true);
  for_each_chunk(x.size(0), most, [&](std::int64_t first, std::int64_t count) {
    packed.pack({}, x, first, count);
    multiply_tiles(packed, packed, tiles, count, gram);
  });
}

void accumulate_difference(at::Tensor& cross, const at::Tensor& minuend, const at::Tensor& x, const GramRows& rows) {
  const std::int64_t features = x.size(1), most = packed_tokens(features);
  const bool pairs = multiplies_pairs(x.scalar_type());
  PackedChunk left(x, pairs, most, panels_of(rows)), right(x, pairs, most, panels_of({0, features}));
  const std::vector<PanelPair> tiles = tiles_of(left.panels(), right.panels(), /*triangle=*/false);
  for_each_chunk(x.size(0), most, [&](std::int64_t first, std::int64_t count) {
    left.pack(minuend, x, first, count);
    right.pack({}, x, first, count);
    multiply_tiles(left, right, tiles, count, cross);
  });
}

void accumulate_tiles(at::Tensor& sums, const at::Tensor& left, const at::Tensor& x) {
  const std::int64_t most = packed_tokens(std::max(left.size(1), x.size(1)));
  const bool pairs = multiplies_pairs(x.scalar_type()) && multiplies_pairs(left.scalar_type());
  PackedChunk rows(left, pairs, most, panels_of({0, left.size(1)})), columns(x, pairs, most, panels_of({0, x.size(1)}));
  const std::vector<PanelPair> tiles = tiles_of(rows.panels(), columns.panels(), /*triangle=*/false);
  for_each_chunk(x.size(0), most, [&](std::int64_t first, std::int64_t count) {
    rows.pack({}, left, first, count);
    columns.pack({}, x, first, count);
    multiply_tiles(rows, columns, tiles, count, sums);
  });
}

std::uint64_t packed_chunk_bytes(std::int64_t features, at::ScalarType dtype) {
  const std::int64_t panels = (features + cpu::kGramPanel - 1) / cpu::kGramPanel;
  return sizeof(float) *
         static_cast<std::uint64_t>(panels * panel_places(packed_tokens(features), multiplies_pairs(dtype)));
}

}  // namespace layerpress::kernels
