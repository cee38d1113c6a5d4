#include "layerpress/kernels/gram.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include "layerpress/base/error.h"
#include "layerpress/kernels/cpu/table.h"

namespace layerpress::kernels {
namespace {

constexpr std::int64_t kBlock = kGramRowStep;  // rows of the triangle that are computed at once
constexpr std::int64_t kTokens = 2048;         // tokens widened to fp32 at once where there are no bf16 products
constexpr std::int64_t kChunk = 512;  // tokens packed at once: two panels of a chunk stay in the second-level cache

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

/// Own tiles: tokens in chunks, packed once into panels of columns, then one task per tile of the upper triangle. Each
/// tile is summed by one thread in the order of the tokens, so the result does not depend on the thread count.
void accumulate_bf16(at::Tensor& gram, const at::Tensor& x, const Rows& wanted) {
  const std::int64_t tokens = x.size(0), features = x.size(1), panel = cpu::kGramPanel;
  const std::int64_t panels = (features + panel - 1) / panel;
  const std::int64_t first_panel = wanted.first / panel, last_panel = (wanted.last + panel - 1) / panel;
  const std::int64_t panel_size = kChunk / 2 * panel;
  const at::Tensor packed = at::empty({panels * panel_size}, at::kInt);
  auto* memory = reinterpret_cast<std::uint32_t*>(packed.data_ptr<std::int32_t>());
  const auto* bits = static_cast<const cpu::Bits16*>(x.const_data_ptr());
  float* target = gram.data_ptr<float>();
  std::vector<std::pair<std::int64_t, std::int64_t>> tiles;
  for (std::int64_t right = first_panel; right < panels; ++right)
    for (std::int64_t left = first_panel; left < std::min(right + 1, last_panel); ++left)
      tiles.emplace_back(left, right);
  const auto width = [&](std::int64_t index) { return std::min(panel, features - index * panel); };

  for (std::int64_t first = 0; first < tokens; first += kChunk) {
    const std::int64_t count = std::min(kChunk, tokens - first);
    at::parallel_for(first_panel, panels, 1, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t p = begin; p < end; ++p)
        cpu::table().gram_pack(bits + first * features + p * panel, count, features, width(p), memory + p * panel_size);
    });
    at::parallel_for(0, static_cast<std::int64_t>(tiles.size()), 1, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t t = begin; t < end; ++t) {
        const auto [left, right] = tiles[t];
        cpu::table().gram_tile({.left = memory + left * panel_size,
                                .right = memory + right * panel_size,
                                .pairs = (count + 1) / 2,
                                .gram = target + left * panel * features + right * panel,
                                .stride = features,
                                .rows = width(left),
                                .columns = width(right)});
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
    return accumulate_bf16(gram, x, rows);
  accumulate_widened(gram, x, rows);
}

std::uint64_t gram_workspace_bytes(std::int64_t features, at::ScalarType dtype) {
  const std::int64_t panels = (features + cpu::kGramPanel - 1) / cpu::kGramPanel;
  const bool packs = dtype == at::kBFloat16 && cpu::table().gram_tile != nullptr;
  return sizeof(float) * static_cast<std::uint64_t>(packs ? panels * cpu::kGramPanel * kChunk / 2 : kTokens * features);
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
