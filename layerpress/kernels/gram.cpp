#include "layerpress/kernels/gram.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "layerpress/base/error.h"
#include "layerpress/kernels/cpu/table.h"
#include "layerpress/kernels/tasks.h"
#include "layerpress/kernels/tensor_bits.h"

namespace layerpress::kernels {
namespace {

constexpr std::int64_t kTokens = 2048;  // tokens widened to fp32 at once where there are no bf16 products

// Tokens packed at once: two panels of them stay in the second-level cache, and threads meet seldom.
constexpr std::int64_t kFewestPacked = 512, kMostPacked = 2048;
constexpr std::int64_t kPackedElements = 1 << 20;

std::int64_t packed_tokens(std::int64_t features) {
  const std::int64_t fitting = kPackedElements / features / kFewestPacked * kFewestPacked;
  return std::clamp(fitting, kFewestPacked, kMostPacked);
}

static_assert(kGramRowStep % cpu::kGramPanel == 0);

/// Rows [first, last) of the triangle.
struct TriangleRows {
  std::int64_t first, last;
};

/// Calls function(first_row, rows) for the row blocks of the upper triangle.
template <typename Function>
void for_each_block(const TriangleRows& wanted, Function&& function) {
  for (std::int64_t row = wanted.first; row < wanted.last; row += kGramRowStep)
    function(row, std::min(kGramRowStep, wanted.last - row));
}

void accumulate_widened(at::Tensor& gram, const at::Tensor& x, const TriangleRows& wanted) {
  for (std::int64_t token = 0; token < x.size(0); token += kTokens) {
    const at::Tensor wide = x.slice(0, token, std::min(token + kTokens, x.size(0))).to(at::kFloat);
    for_each_block(wanted, [&](std::int64_t row, std::int64_t rows) {
      at::Tensor target = gram.slice(0, row, row + rows).slice(1, row);
      at::addmm_out(target, target, wide.slice(1, row, row + rows).t(), wide.slice(1, row));
    });
  }
}

/// Panels of columns, as rows or columns of a matrix of tiles.
struct Panels {
  std::int64_t first, last;
};

/// A panel is narrower than a row, and what the processor fetches ahead on its own ends with a page.
void prefetch(const cpu::Bits16* values, std::int64_t count) {
  constexpr std::int64_t kLine = 32;
  for (std::int64_t i = 0; i < count; i += kLine) __builtin_prefetch(values + i);
}

/// Some panels of a chunk of tokens, packed.
class PackedChunk {
 public:
  PackedChunk(std::int64_t features, std::int64_t most_tokens, const Panels& panels)
      : features_(features),
        panel_size_(most_tokens / 2 * cpu::kGramPanel),
        panels_(panels),
        memory_(at::empty({(panels.last - panels.first) * panel_size_}, at::kInt)) {}

  /// Packs tokens [first, first + count) of x, or of minuend - x when there is a minuend.
  void pack(const at::Tensor& minuend, const at::Tensor& x, std::int64_t first, std::int64_t count) {
    const std::int64_t skipped = first * features_;
    const cpu::Bits16* own = bits(x) + skipped;
    const cpu::Bits16* from = minuend.defined() ? bits(minuend) + skipped : nullptr;
    // By tokens, so that rows of x are read from one end to the other.
    for_each_task((count + kPackedTokens - 1) / kPackedTokens, [&](std::int64_t task) {
      const std::int64_t token = task * kPackedTokens, tokens = std::min(kPackedTokens, count - token);
      prefetch(own + token * features_, tokens * features_);
      if (from != nullptr) prefetch(from + token * features_, tokens * features_);
      for (std::int64_t p = panels_.first; p < panels_.last; ++p) {
        const std::int64_t place = token * features_ + p * cpu::kGramPanel;
        std::uint32_t* packed = panel(p) + token / 2 * cpu::kGramPanel;
        if (from == nullptr)
          cpu::table().gram_pack(own + place, tokens, features_, width(p), packed);
        else
          cpu::table().gram_pack_difference(from + place, own + place, tokens, features_, width(p), packed);
      }
    });
  }

  const Panels& panels() const { return panels_; }
  std::int64_t width(std::int64_t p) const { return std::min(cpu::kGramPanel, features_ - p * cpu::kGramPanel); }
  std::uint32_t* panel(std::int64_t p) const {
    return reinterpret_cast<std::uint32_t*>(memory_.data_ptr<std::int32_t>()) + (p - panels_.first) * panel_size_;
  }

 private:
  static constexpr std::int64_t kPackedTokens = 32;  // by one task; even, since tokens are packed in pairs

  std::int64_t features_;
  std::int64_t panel_size_;
  Panels panels_;
  at::Tensor memory_;
};

/// A tile's place: left panel, right panel.
using PanelPair = std::pair<std::int64_t, std::int64_t>;

std::vector<PanelPair> tiles_of(const Panels& left, const Panels& right, bool triangle) {
  std::vector<PanelPair> tiles;
  for (std::int64_t j = right.first; j < right.last; ++j)
    for (std::int64_t i = left.first; i < (triangle ? std::min(j + 1, left.last) : left.last); ++i)
      tiles.emplace_back(i, j);
  return tiles;
}

/// Adds the products of packed panels to `target`, one task per tile. Each tile is summed by one thread in the order of the
/// tokens, so the result does not depend on the thread count.
void multiply_tiles(const PackedChunk& left, const PackedChunk& right, const std::vector<PanelPair>& tiles,
                    std::int64_t tokens, at::Tensor& target) {
  float* elements = target.data_ptr<float>();
  const std::int64_t stride = target.size(1);
  for_each_task(static_cast<std::int64_t>(tiles.size()), [&](std::int64_t t) {
    const auto [i, j] = tiles[static_cast<std::size_t>(t)];
    cpu::table().gram_tile({.left = left.panel(i),
                            .right = right.panel(j),
                            .pairs = (tokens + 1) / 2,
                            .gram = elements + (i * stride + j) * cpu::kGramPanel,
                            .stride = stride,
                            .rows = left.width(i),
                            .columns = right.width(j),
                            .on_diagonal = &left == &right && i == j});
  });
}

Panels panels_of(const TriangleRows& rows) {
  return {rows.first / cpu::kGramPanel, (rows.last + cpu::kGramPanel - 1) / cpu::kGramPanel};
}

/// Own tiles: tokens in chunks, packed once into panels of columns that are on both sides of the triangle's tiles.
void accumulate_bf16(at::Tensor& gram, const at::Tensor& x, const TriangleRows& wanted) {
  const std::int64_t features = x.size(1), most = packed_tokens(features);
  PackedChunk packed(features, most, panels_of({wanted.first, features}));
  const std::vector<PanelPair> tiles = tiles_of(panels_of(wanted), packed.panels(), /*triangle=*/true);
  for (std::int64_t first = 0; first < x.size(0); first += most) {
    const std::int64_t count = std::min(most, x.size(0) - first);
    packed.pack({}, x, first, count);
    multiply_tiles(packed, packed, tiles, count, gram);
  }
}

/// The same for the square (reference - x)ᵀ x: differences on the left, x on the right.
void accumulate_cross_bf16(at::Tensor& cross, const at::Tensor& reference, const at::Tensor& x,
                           const TriangleRows& wanted) {
  const std::int64_t features = x.size(1), most = packed_tokens(features);
  PackedChunk left(features, most, panels_of(wanted)), right(features, most, panels_of({0, features}));
  const std::vector<PanelPair> tiles = tiles_of(left.panels(), right.panels(), /*triangle=*/false);
  for (std::int64_t first = 0; first < x.size(0); first += most) {
    const std::int64_t count = std::min(most, x.size(0) - first);
    left.pack(reference, x, first, count);
    right.pack({}, x, first, count);
    multiply_tiles(left, right, tiles, count, cross);
  }
}

/// leftᵀ x, every tile of it.
void accumulate_product_bf16(at::Tensor& sums, const at::Tensor& left, const at::Tensor& x) {
  const std::int64_t most = packed_tokens(std::max(left.size(1), x.size(1)));
  PackedChunk rows(left.size(1), most, panels_of({0, left.size(1)}));
  PackedChunk columns(x.size(1), most, panels_of({0, x.size(1)}));
  const std::vector<PanelPair> tiles = tiles_of(rows.panels(), columns.panels(), /*triangle=*/false);
  for (std::int64_t first = 0; first < x.size(0); first += most) {
    const std::int64_t count = std::min(most, x.size(0) - first);
    rows.pack({}, left, first, count);
    columns.pack({}, x, first, count);
    multiply_tiles(rows, columns, tiles, count, sums);
  }
}

void accumulate_product_widened(at::Tensor& sums, const at::Tensor& left, const at::Tensor& x) {
  for (std::int64_t token = 0; token < x.size(0); token += kTokens) {
    const std::int64_t end = std::min(token + kTokens, x.size(0));
    at::addmm_out(sums, sums, left.slice(0, token, end).to(at::kFloat).t(), x.slice(0, token, end).to(at::kFloat));
  }
}

void accumulate_cross_widened(at::Tensor& cross, const at::Tensor& reference, const at::Tensor& x,
                              const TriangleRows& wanted) {
  for (std::int64_t token = 0; token < x.size(0); token += kTokens) {
    const std::int64_t end = std::min(token + kTokens, x.size(0));
    const at::Tensor wide = x.slice(0, token, end).to(at::kFloat);
    // A tensor of its own: of fp32 inputs a conversion would be the input itself.
    const at::Tensor difference = at::empty({end - token, wanted.last - wanted.first}, wide.options());
    difference.copy_(reference.slice(0, token, end).slice(1, wanted.first, wanted.last));
    difference.sub_(wide.slice(1, wanted.first, wanted.last));
    for_each_block(wanted, [&](std::int64_t row, std::int64_t rows) {
      at::Tensor target = cross.slice(0, row, row + rows);
      at::addmm_out(target, target, difference.narrow(1, row - wanted.first, rows).t(), wide);
    });
  }
}

/// Tensor cores with fp32 results; the difference is rounded once to the inputs' dtype.
void accumulate_cross_on_device(at::Tensor& cross, const at::Tensor& reference, const at::Tensor& x,
                                const TriangleRows& wanted) {
  for_each_block(wanted, [&](std::int64_t row, std::int64_t rows) {
    const at::Tensor difference = reference.narrow(1, row, rows).sub(x.narrow(1, row, rows));
    cross.narrow(0, row, rows).add_(at::mm(difference.t(), x, at::kFloat));
  });
}

/// The same for the product of two unlike matrices.
void accumulate_product_on_device(at::Tensor& sums, const at::Tensor& left, const at::Tensor& x) {
  for_each_block({0, left.size(1)}, [&](std::int64_t row, std::int64_t rows) {
    sums.narrow(0, row, rows).add_(at::mm(left.narrow(1, row, rows).t(), x, at::kFloat));
  });
}

/// Tensor cores with fp32 results; half of the square by row blocks.
void accumulate_on_device(at::Tensor& gram, const at::Tensor& x, const TriangleRows& wanted) {
  for_each_block(wanted, [&](std::int64_t row, std::int64_t rows) {
    at::Tensor target = gram.slice(0, row, row + rows).slice(1, row);
    target.add_(at::mm(x.slice(1, row, row + rows).t(), x.slice(1, row), at::kFloat));
  });
}

void require_fitting(const at::Tensor& sums, const at::Tensor& x, const TriangleRows& rows) {
  const std::int64_t features = x.size(1);
  if (sums.scalar_type() != at::kFloat || sums.dim() != 2 || sums.size(0) != features || sums.size(1) != features ||
      !sums.is_contiguous())
    throw InternalError("[kernels.gram] the accumulator does not fit {} features", features);
  if (rows.first < 0 || rows.last > features || rows.first % kGramRowStep != 0 ||
      (rows.last % kGramRowStep != 0 && rows.last != features))
    throw InternalError("[kernels.gram] rows {} to {} of {} are no whole blocks", rows.first, rows.last, features);
}

bool multiplies_halves_on_device(const at::Tensor& x) {
  return x.is_cuda() && (x.scalar_type() == at::kBFloat16 || x.scalar_type() == at::kHalf);
}

bool packs_tiles(const at::Tensor& x) {
  return x.is_cpu() && x.scalar_type() == at::kBFloat16 && cpu::table().gram_tile != nullptr;
}

}  // namespace

void accumulate_gram(at::Tensor& gram, const at::Tensor& x) { accumulate_gram_rows(gram, x, 0, gram.size(0)); }

void accumulate_gram_rows(at::Tensor& gram, const at::Tensor& input, std::int64_t first, std::int64_t last) {
  const at::Tensor x = input.contiguous();
  const TriangleRows rows{first, last};
  require_fitting(gram, x, rows);
  if (x.size(0) == 0 || first >= last) return;
  if (multiplies_halves_on_device(x)) return accumulate_on_device(gram, x, rows);
  if (packs_tiles(x)) return accumulate_bf16(gram, x, rows);
  accumulate_widened(gram, x, rows);
}

void accumulate_cross_gram(at::Tensor& cross, const at::Tensor& reference, const at::Tensor& x) {
  accumulate_cross_gram_rows(cross, reference, x, 0, cross.size(0));
}

void accumulate_cross_gram_rows(at::Tensor& cross, const at::Tensor& reference, const at::Tensor& input,
                                std::int64_t first, std::int64_t last) {
  if (reference.sizes() != input.sizes() || reference.scalar_type() != input.scalar_type())
    throw InternalError("[kernels.gram] the reference is not like the {} x {} inputs", input.size(0), input.size(1));
  const at::Tensor minuend = reference.contiguous(), x = input.contiguous();
  const TriangleRows rows{first, last};
  require_fitting(cross, x, rows);
  if (x.size(0) == 0 || first >= last) return;
  if (multiplies_halves_on_device(x)) return accumulate_cross_on_device(cross, minuend, x, rows);
  if (packs_tiles(x)) return accumulate_cross_bf16(cross, minuend, x, rows);
  accumulate_cross_widened(cross, minuend, x, rows);
}

void accumulate_product(at::Tensor& sums, const at::Tensor& left_input, const at::Tensor& input) {
  const at::Tensor left = left_input.contiguous(), x = input.contiguous();
  if (sums.scalar_type() != at::kFloat || !sums.is_contiguous() || sums.dim() != 2 || sums.size(0) != left.size(1) ||
      sums.size(1) != x.size(1) || left.size(0) != x.size(0) || left.scalar_type() != x.scalar_type())
    throw InternalError("[kernels.gram] the accumulator does not fit {} x {} products", left.size(1), x.size(1));
  if (x.size(0) == 0) return;
  if (multiplies_halves_on_device(x))
    accumulate_product_on_device(sums, left, x);
  else if (packs_tiles(x))
    accumulate_product_bf16(sums, left, x);
  else
    accumulate_product_widened(sums, left, x);
}

std::uint64_t gram_workspace_bytes(std::int64_t features, at::ScalarType dtype) {
  const std::int64_t panels = (features + cpu::kGramPanel - 1) / cpu::kGramPanel;
  const bool packs = dtype == at::kBFloat16 && cpu::table().gram_tile != nullptr;
  return sizeof(float) * static_cast<std::uint64_t>(packs ? panels * cpu::kGramPanel * packed_tokens(features) / 2
                                                          : kTokens * features);
}

std::uint64_t cross_gram_workspace_bytes(std::int64_t features, at::ScalarType dtype) {
  return 2 * gram_workspace_bytes(features, dtype);  // the inputs, and the difference beside them
}

at::Tensor gram_reference(const at::Tensor& x) {
  const at::Tensor wide = x.to(at::kDouble);
  return wide.t().mm(wide);
}

at::Tensor cross_gram_reference(const at::Tensor& reference, const at::Tensor& x) {
  const at::Tensor wide = x.to(at::kDouble);
  return (reference.to(at::kDouble) - wide).t().mm(wide);
}

at::Tensor symmetric_from_upper(const at::Tensor& gram) {
  at::Tensor full = gram.triu();
  return full.add_(gram.triu(1).t());
}

}  // namespace layerpress::kernels
