#include "layerpress/kernels/gram.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <optional>

#include "layerpress/base/error.h"
#include "layerpress/kernels/cpu/table.h"

namespace layerpress::kernels {
namespace {

constexpr std::int64_t kBlock = kGramRowStep;  // rows of the triangle that are computed at once
constexpr std::int64_t kTokens = 2048;         // tokens widened to fp32 at once where there are no bf16 products
constexpr std::int64_t kChunk = 512;           // tokens packed at once: two panels of a chunk stay in the second-level cache

static_assert(kBlock % cpu::kGramPanel == 0);

/// Rows [first, last) of the triangle.
struct Rows {
  std::int64_t first, last;
};

/// Calls function(first_row, rows) for the row blocks of the upper triangle.
template <typename Function>
void for_each_block(const Rows& wanted, Function&& function) {
  for (std::int64_t row = wanted.first; row < wanted.last; row += kBlock)
    function(row, std::min(kBlock, wanted.last - row));
}

void accumulate_widened(at::Tensor& gram, const at::Tensor& x, const Rows& wanted) {
  for (std::int64_t token = 0; token < x.size(0); token += kTokens) {
    const at::Tensor wide = x.slice(0, token, std::min(token + kTokens, x.size(0))).to(at::kFloat);
    for_each_block(wanted, [&](std::int64_t row, std::int64_t rows) {
      at::Tensor target = gram.slice(0, row, row + rows).slice(1, row);
      at::addmm_out(target, target, wide.slice(1, row, row + rows).t(), wide.slice(1, row));
    });
  }
}

/// Columns of a chunk of tokens, packed in panels.
class PackedChunk {
 public:
  /// Panels from that of column `first` on.
  PackedChunk(std::int64_t features, std::int64_t first)
      : features_(features),
        first_panel_(first / cpu::kGramPanel),
        panels_((features + cpu::kGramPanel - 1) / cpu::kGramPanel),
        memory_(at::empty({panels_ * kPanelSize}, at::kInt)) {}

  /// Tokens [first, first + count) of x, or of minuend - x when there is a minuend.
  void pack(const at::Tensor& minuend, const at::Tensor& x, std::int64_t first, std::int64_t count) {
    const std::int64_t skipped = first * features_;
    const auto* bits = static_cast<const cpu::Bits16*>(x.const_data_ptr()) + skipped;
    const auto* from =
        minuend.defined() ? static_cast<const cpu::Bits16*>(minuend.const_data_ptr()) + skipped : nullptr;
    at::parallel_for(first_panel_, panels_, 1, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t p = begin; p < end; ++p) {
        const std::int64_t column = p * cpu::kGramPanel;
        if (from == nullptr)
          cpu::table().gram_pack(bits + column, count, features_, width(p), panel(p));
        else
          cpu::table().gram_pack_difference(from + column, bits + column, count, features_, width(p), panel(p));
      }
    });
  }

  std::int64_t panels() const { return panels_; }
  std::int64_t width(std::int64_t p) const { return std::min(cpu::kGramPanel, features_ - p * cpu::kGramPanel); }
  std::uint32_t* panel(std::int64_t p) const {
    return reinterpret_cast<std::uint32_t*>(memory_.data_ptr<std::int32_t>()) + p * kPanelSize;
  }

 private:
  static constexpr std::int64_t kPanelSize = kChunk / 2 * cpu::kGramPanel;
  std::int64_t features_, first_panel_, panels_;
  at::Tensor memory_;
};

/// Own tiles: tokens in chunks, packed once into panels of columns, then one task per tile: of the upper triangle of xᵀx, or,
/// with a reference, of the square (reference - x)ᵀx. Each tile is summed by one thread in the order of the tokens, so the
/// result does not depend on the thread count.
void accumulate_bf16(at::Tensor& gram, const at::Tensor& reference, const at::Tensor& x, const Rows& wanted) {
  const bool triangle = !reference.defined();
  const std::int64_t tokens = x.size(0), features = x.size(1), panel = cpu::kGramPanel;
  const std::int64_t first_row = wanted.first / panel, last_row = (wanted.last + panel - 1) / panel;
  PackedChunk right(features, triangle ? wanted.first : 0);
  std::optional<PackedChunk> difference;
  if (!triangle) difference.emplace(features, 0);
  const PackedChunk& left = triangle ? right : *difference;
  std::vector<std::pair<std::int64_t, std::int64_t>> tiles;
  for (std::int64_t j = triangle ? first_row : 0; j < right.panels(); ++j)
    for (std::int64_t i = first_row; i < (triangle ? std::min(j + 1, last_row) : last_row); ++i) tiles.emplace_back(i, j);
  float* target = gram.data_ptr<float>();
  for (std::int64_t first = 0; first < tokens; first += kChunk) {
    const std::int64_t count = std::min(kChunk, tokens - first);
    right.pack({}, x, first, count);
    if (difference) difference->pack(reference, x, first, count);
    at::parallel_for(0, static_cast<std::int64_t>(tiles.size()), 1, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t t = begin; t < end; ++t) {
        const auto [i, j] = tiles[static_cast<std::size_t>(t)];
        cpu::table().gram_tile({.left = left.panel(i),
                                .right = right.panel(j),
                                .pairs = (count + 1) / 2,
                                .gram = target + (i * features + j) * panel,
                                .stride = features,
                                .rows = left.width(i),
                                .columns = right.width(j)});
      }
    });
  }
}

/// Tensor cores with fp32 results; half of the square by row blocks.
void accumulate_on_device(at::Tensor& gram, const at::Tensor& x, const Rows& wanted) {
  for_each_block(wanted, [&](std::int64_t row, std::int64_t rows) {
    at::Tensor target = gram.slice(0, row, row + rows).slice(1, row);
    target.add_(at::mm(x.slice(1, row, row + rows).t(), x.slice(1, row), at::kFloat));
  });
}

}  // namespace

void accumulate_gram(at::Tensor& gram, const at::Tensor& x) { accumulate_gram_rows(gram, x, 0, gram.size(0)); }

void accumulate_gram_rows(at::Tensor& gram, const at::Tensor& input, std::int64_t first, std::int64_t last) {
  const at::Tensor x = input.contiguous();
  if (gram.scalar_type() != at::kFloat || gram.dim() != 2 || gram.size(0) != x.size(1) || gram.size(1) != x.size(1) ||
      !gram.is_contiguous())
    throw InternalError("[kernels.gram] the accumulator does not fit {} features", x.size(1));
  if (first < 0 || last > x.size(1) || first % kBlock != 0 || (last % kBlock != 0 && last != x.size(1)))
    throw InternalError("[kernels.gram] rows {} to {} of {} are no whole blocks", first, last, x.size(1));
  if (x.size(0) == 0 || first >= last) return;
  const Rows rows{first, last};
  const bool half = x.scalar_type() == at::kBFloat16 || x.scalar_type() == at::kHalf;
  if (x.is_cuda() && half) return accumulate_on_device(gram, x, rows);
  if (x.is_cpu() && x.scalar_type() == at::kBFloat16 && cpu::table().gram_tile != nullptr)
    return accumulate_bf16(gram, {}, x, rows);
  accumulate_widened(gram, x, rows);
}

void accumulate_cross_gram_rows(at::Tensor& cross, const at::Tensor& reference_input, const at::Tensor& input,
                                std::int64_t first, std::int64_t last) {
  const at::Tensor reference = reference_input.contiguous(), x = input.contiguous();
  if (cross.scalar_type() != at::kFloat || cross.dim() != 2 || cross.size(0) != x.size(1) ||
      cross.size(1) != x.size(1) || reference.sizes() != x.sizes() || reference.scalar_type() != x.scalar_type() ||
      !cross.is_contiguous() || first < 0 || last > x.size(1) || first % kBlock != 0 ||
      (last % kBlock != 0 && last != x.size(1)))
    throw InternalError("[kernels.gram] the accumulator does not fit {} features", x.size(1));
  if (x.size(0) == 0 || first >= last) return;
  if (x.is_cpu() && x.scalar_type() == at::kBFloat16 && cpu::table().gram_tile != nullptr)
    return accumulate_bf16(cross, reference, x, {first, last});
  for (std::int64_t token = 0; token < x.size(0); token += kTokens) {
    const std::int64_t end = std::min(token + kTokens, x.size(0));
    const at::Tensor own = x.slice(0, token, end);
    at::Tensor difference = reference.slice(0, token, end).slice(1, first, last).to(at::kFloat);
    difference.sub_(own.slice(1, first, last));
    at::Tensor rows = cross.slice(0, first, last);
    const bool half = x.scalar_type() == at::kBFloat16 || x.scalar_type() == at::kHalf;
    if (x.is_cuda() && half)
      rows.add_(at::mm(difference.to(x.scalar_type()).t(), own, at::kFloat));
    else
      rows.addmm_(difference.t(), own.to(at::kFloat));
  }
}

void accumulate_cross_gram(at::Tensor& cross, const at::Tensor& reference, const at::Tensor& x) {
  accumulate_cross_gram_rows(cross, reference, x, 0, cross.size(0));
}

std::uint64_t gram_workspace_bytes(std::int64_t features, at::ScalarType dtype) {
  const std::int64_t panels = (features + cpu::kGramPanel - 1) / cpu::kGramPanel;
  const bool packs = dtype == at::kBFloat16 && cpu::table().gram_tile != nullptr;
  return sizeof(float) * static_cast<std::uint64_t>(packs ? panels * cpu::kGramPanel * kChunk / 2 : kTokens * features);
}

std::uint64_t cross_gram_workspace_bytes(std::int64_t features, at::ScalarType dtype) {
  return 2 * gram_workspace_bytes(features, dtype);  // the difference beside the inputs
}

at::Tensor gram_reference(const at::Tensor& x) {
  const at::Tensor wide = x.to(at::kDouble);
  return wide.t().mm(wide);
}

at::Tensor symmetric_from_upper(const at::Tensor& gram) {
  at::Tensor full = gram.triu();
  return full.add_(gram.triu(1).t());
}

}  // namespace layerpress::kernels
