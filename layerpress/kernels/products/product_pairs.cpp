// Products with bf16 dot products: rows of x as they are, packed panels of weights.
#include <ATen/ATen.h>

#include <algorithm>

#include "layerpress/kernels/products/product.h"
#include "layerpress/kernels/products/tensor_bits.h"
#include "layerpress/kernels/tasks.h"

namespace layerpress::kernels {
namespace {

// What the cores keep in their caches: rows of x that pass one panel after the other, the part of the features for
// which they do, panels that are packed before all rows pass them.
constexpr std::int64_t kRowBytes = 512 << 10;
constexpr std::int64_t kPairs = 1024;
constexpr std::int64_t kPanelBytes = 1 << 20;
constexpr std::int64_t kPanelsAtOnce = 4;
constexpr std::int64_t kSummedRows = 96;  // their sums stay in the first-level cache until they are finished
constexpr std::int64_t kFewRows = 48;     // fewer at once would read panels too often

/// InputRows of x, contiguous. InputRows a multiple of 4096 bytes apart share a set of the first-level cache, which
/// then holds too few of them: they are copied apart.
struct InputRows {
  explicit InputRows(const at::Tensor& x) : count(x.size(0)), features(x.size(1)), stride(features), memory(x) {
    constexpr std::int64_t kLine = 32;
    if (!shares_sets(features)) return;
    stride += kLine;
    memory = at::empty({count, stride}, x.options());
    memory.narrow(1, 0, features).copy_(x);
  }
  static bool shares_sets(std::int64_t features) { return features * 2 % 4096 == 0; }

  std::int64_t count, features, stride;
  at::Tensor memory;
};

/// The most rows that pass the panels at once.
std::int64_t paired_rows_at_once(std::int64_t features) {
  const std::int64_t bytes = 2 * std::min(features, 2 * kPairs);
  return std::clamp<std::int64_t>(kRowBytes / bytes, kFewRows, 512);
}

std::int64_t paired_panels_at_once(std::int64_t pairs) {
  return std::max<std::int64_t>(1, kPanelBytes / (pairs * cpu::kProductPanel * 4));
}

/// The sums of rows [first, first + count) for one packed panel.
void sum_tile(const InputRows& x, std::int64_t first, std::int64_t count, const std::uint32_t* panel, float* sums) {
  const std::int64_t pairs = x.features / 2;
  for (std::int64_t pair = 0; pair < pairs; pair += kPairs)
    cpu::table().product_tile({.x = bits(x.memory) + first * x.stride + 2 * pair,
                               .stride = x.stride,
                               .rows = count,
                               .pairs = std::min(kPairs, pairs - pair),
                               .panel = panel + pair * cpu::kProductPanel,
                               .sums = sums,
                               .adds = pair > 0});
}

void pack_pairs(const Product& product, std::int64_t panel, std::uint32_t* memory) {
  for (std::int64_t which = 0; which < 2; ++which) {
    const cpu::StoredRows rows = product.half(panel, which);
    cpu::table().product_pack(static_cast<const cpu::Bits16*>(rows.values), rows.stride, rows.count, rows.stride / 2,
                              memory + which * cpu::kProductHalf);
  }
}

}  // namespace

void multiply_pairs(const Product& product) {
  const InputRows x(product.x);
  const std::int64_t panels = product.panels(), size = x.features / 2 * cpu::kProductPanel,
                     block = std::min(panels, paired_panels_at_once(x.features / 2));
  std::int64_t most = paired_rows_at_once(x.features);
  while (most > kFewRows && block * ((x.count + most - 1) / most) < 4 * at::get_num_threads()) most /= 2;
  const std::int64_t parts = (x.count + most - 1) / most;
  const std::int64_t even = parts == 0 ? 0 : (x.count + parts - 1) / parts;
  const std::int64_t step = (even + kSummedRows - 1) / kSummedRows * kSummedRows;
  const at::Tensor memory = at::empty({block * size}, at::kInt);
  auto* packed = reinterpret_cast<std::uint32_t*>(memory.data_ptr<std::int32_t>());
  for (std::int64_t first = 0; first < panels; first += block) {
    const std::int64_t count = std::min(block, panels - first);
    for_each_task(count, [&](std::int64_t p) { pack_pairs(product, first + p, packed + p * size); });
    // A task is some panels, so that rows are in the cache for all but the first of them.
    const std::int64_t runs = (count + kPanelsAtOnce - 1) / kPanelsAtOnce;
    share_tasks(parts * runs, [&](auto&& next) {
      const at::Tensor sums = at::empty({kSummedRows * cpu::kProductPanel}, at::kFloat);
      for (std::int64_t task = next(); task < parts * runs; task = next()) {
        const std::int64_t row = task / runs * step, end = std::min(x.count, row + step),
                           panel = task % runs * kPanelsAtOnce;
        for (std::int64_t r = row; r < end; r += kSummedRows)
          for (std::int64_t p = panel; p < std::min(count, panel + kPanelsAtOnce); ++p) {
            const std::int64_t rows = std::min(kSummedRows, end - r);
            product.announce(first + p, r, rows);
            sum_tile(x, r, rows, packed + p * size, sums.data_ptr<float>());
            product.finish(first + p, r, rows, sums.const_data_ptr<float>());
          }
      }
    });
  }
}

std::uint64_t pairs_workspace_bytes(std::int64_t rows, std::int64_t features, int threads) {
  const std::int64_t pairs = (features + 1) / 2, apart = InputRows::shares_sets(features) ? rows * (pairs + 16) : 0;
  const std::int64_t sums = std::min(rows, kSummedRows) * threads;
  return sizeof(float) *
         static_cast<std::uint64_t>(cpu::kProductPanel * (pairs * paired_panels_at_once(pairs) + sums) + apart);
}

}  // namespace layerpress::kernels
