#include "layerpress/kernels/linear.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <vector>

#include "layerpress/kernels/cpu/table.h"
#include "layerpress/kernels/tasks.h"
#include "layerpress/kernels/tensor_bits.h"
#include "layerpress/kernels/transformer.h"

namespace layerpress::kernels {
namespace {

// What the cores keep in their caches: rows of x that pass one panel after the other, the part of the features for which they
// do, panels that are packed before all rows pass them.
constexpr std::int64_t kRowBytes = 512 << 10;
constexpr std::int64_t kPairs = 1024;
constexpr std::int64_t kPanelBytes = 1 << 20;
constexpr std::int64_t kPanelsAtOnce = 4;
constexpr std::int64_t kSummedRows = 96;  // their sums stay in the first-level cache until they are finished
constexpr std::int64_t kFewRows = 48;     // fewer at once would read panels too often

bool fits_pairs(std::int64_t features) { return features > 0 && features % 2 == 0; }

bool fits_tiles(const at::Tensor& x, const at::Tensor& weight) {
  return x.is_cpu() && runs_on_tiles(x.scalar_type()) && weight.scalar_type() == x.scalar_type() &&
         fits_pairs(weight.size(1));
}

/// Rows of x, contiguous. Rows a multiple of 4096 bytes apart share a set of the first-level cache, which then holds too few
/// of them: they are copied apart.
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

/// How many rows pass the panels at once, at most.
std::int64_t rows_at_once(std::int64_t features) {
  const std::int64_t bytes = 2 * std::min(features, 2 * kPairs);
  return std::clamp<std::int64_t>(kRowBytes / bytes, kFewRows, 512);
}

std::int64_t panels_at_once(std::int64_t pairs) {
  return std::max<std::int64_t>(1, kPanelBytes / (pairs * cpu::kProductPanel * 4));
}

/// Sums of rows [first, first + count) for panel `panel`.
struct OutputTile {
  std::int64_t panel, first, count;
  const float* sums;
};

/// The sums of some rows for one packed panel.
void sum_tile(const InputRows& x, const OutputTile& tile, const std::uint32_t* panel, float* sums) {
  const std::int64_t pairs = x.features / 2;
  for (std::int64_t pair = 0; pair < pairs; pair += kPairs)
    cpu::table().product_tile({.x = bits(x.memory) + tile.first * x.stride + 2 * pair,
                               .stride = x.stride,
                               .rows = tile.count,
                               .pairs = std::min(kPairs, pairs - pair),
                               .panel = panel + pair * cpu::kProductPanel,
                               .sums = sums,
                               .adds = pair > 0});
}

/// pack(panel, memory) fills a panel of all features; finish(tile) takes the sums, prepare(tile) announces them.
template <typename Pack, typename Prepare, typename Finish>
void multiply(const InputRows& x, std::int64_t panels, Pack&& pack, Prepare&& prepare, Finish&& finish) {
  const std::int64_t size = x.features / 2 * cpu::kProductPanel,
                     block = std::min(panels, panels_at_once(x.features / 2));
  std::int64_t most = rows_at_once(x.features);
  while (most > kFewRows && block * ((x.count + most - 1) / most) < 4 * at::get_num_threads()) most /= 2;
  const std::int64_t parts = (x.count + most - 1) / most;
  const std::int64_t even = parts == 0 ? 0 : (x.count + parts - 1) / parts;
  const std::int64_t step = (even + kSummedRows - 1) / kSummedRows * kSummedRows;
  const at::Tensor memory = at::empty({block * size}, at::kInt);
  auto* packed = reinterpret_cast<std::uint32_t*>(memory.data_ptr<std::int32_t>());
  for (std::int64_t first = 0; first < panels; first += block) {
    const std::int64_t count = std::min(block, panels - first);
    for_each_task(count, [&](std::int64_t p) { pack(first + p, packed + p * size); });
    // A task is some panels, so that rows are in the cache for all but the first of them.
    const std::int64_t runs = (count + kPanelsAtOnce - 1) / kPanelsAtOnce;
    share_tasks(parts * runs, [&](auto&& next) {
      const at::Tensor sums = at::empty({kSummedRows * cpu::kProductPanel}, at::kFloat);
      for (std::int64_t task = next(); task < parts * runs; task = next()) {
        const std::int64_t row = task / runs * step, end = std::min(x.count, row + step),
                           panel = task % runs * kPanelsAtOnce;
        for (std::int64_t r = row; r < end; r += kSummedRows)
          for (std::int64_t p = panel; p < std::min(count, panel + kPanelsAtOnce); ++p) {
            const OutputTile tile{first + p, r, std::min(kSummedRows, end - r), sums.const_data_ptr<float>()};
            prepare(tile);
            sum_tile(x, tile, packed + p * size, sums.data_ptr<float>());
            finish(tile);
          }
      }
    });
  }
}

/// Packs outputs [first, first + kProductHalf) of a weight, as far as there are any.
void pack_half(const at::Tensor& weight, std::int64_t first, std::uint32_t* memory) {
  const std::int64_t features = weight.size(1);
  const std::int64_t rows = std::clamp<std::int64_t>(weight.size(0) - first, 0, cpu::kProductHalf);
  cpu::table().product_pack(bits(weight) + (rows == 0 ? 0 : first * features), features, rows, features / 2, memory);
}

std::int64_t panels_of(std::int64_t outputs, std::int64_t width) { return (outputs + width - 1) / width; }

/// Has the places of a tile's results in the cache by the time they are there.
void fetch(cpu::Bits16* column, std::int64_t stride, const OutputTile& tile) {
  for (std::int64_t row = tile.first; row < tile.first + tile.count; ++row)
    __builtin_prefetch(column + row * stride, /*rw=*/1);
}

at::Tensor on_tiles(const at::Tensor& x, const at::Tensor& weight, const cpu::Bits16* bias) {
  const std::int64_t outputs = weight.size(0);
  at::Tensor y = at::empty({x.size(0), outputs}, x.options());
  cpu::Bits16* target = mutable_bits(y);
  multiply(
      InputRows(x), panels_of(outputs, cpu::kProductPanel),
      [&](std::int64_t panel, std::uint32_t* memory) {
        pack_half(weight, panel * cpu::kProductPanel, memory);
        pack_half(weight, panel * cpu::kProductPanel + cpu::kProductHalf, memory + cpu::kProductHalf);
      },
      [&](const OutputTile& tile) { fetch(target + tile.panel * cpu::kProductPanel, outputs, tile); },
      [&](const OutputTile& tile) {
        const std::int64_t first = tile.panel * cpu::kProductPanel;
        cpu::table().product_round(tile.sums, tile.count, std::min(cpu::kProductPanel, outputs - first),
                                   bias == nullptr ? nullptr : bias + first, target + tile.first * outputs + first,
                                   outputs);
      });
  return y;
}

at::Tensor gated_on_tiles(const at::Tensor& x, const at::Tensor& gate, const at::Tensor& up) {
  const std::int64_t outputs = gate.size(0);
  at::Tensor y = at::empty({x.size(0), outputs}, x.options());
  cpu::Bits16* target = mutable_bits(y);
  multiply(
      InputRows(x), panels_of(outputs, cpu::kProductHalf),
      [&](std::int64_t panel, std::uint32_t* memory) {
        pack_half(gate, panel * cpu::kProductHalf, memory);
        pack_half(up, panel * cpu::kProductHalf, memory + cpu::kProductHalf);
      },
      [&](const OutputTile& tile) { fetch(target + tile.panel * cpu::kProductHalf, outputs, tile); },
      [&](const OutputTile& tile) {
        const std::int64_t first = tile.panel * cpu::kProductHalf;
        cpu::table().product_gate(tile.sums, tile.count, std::min(cpu::kProductHalf, outputs - first),
                                  target + tile.first * outputs + first, outputs);
      });
  return y;
}

/// [..., features] as contiguous rows, and a result's rows as [..., outputs].
at::Tensor rows_of(const at::Tensor& x) { return x.reshape({-1, x.size(-1)}).contiguous(); }
at::Tensor shaped_like(const at::Tensor& x, const at::Tensor& y) {
  std::vector<std::int64_t> shape = x.sizes().vec();
  shape.back() = y.size(1);
  return y.view(shape);
}

}  // namespace

bool runs_on_tiles(at::ScalarType dtype) { return dtype == at::kBFloat16 && cpu::table().product_tile != nullptr; }

at::Tensor linear(const at::Tensor& x, const at::Tensor& weight, const std::optional<at::Tensor>& bias) {
  const bool has_bias = bias && bias->defined();
  if (!fits_tiles(x, weight) || (has_bias && bias->scalar_type() != x.scalar_type()))
    return at::linear(x, weight, has_bias ? bias : std::nullopt);
  const at::Tensor added = has_bias ? bias->contiguous() : at::Tensor();
  return shaped_like(x, on_tiles(rows_of(x), weight.contiguous(), has_bias ? bits(added) : nullptr));
}

bool fuses_gated_linear(const std::string& function, std::int64_t features, at::ScalarType dtype) {
  return function == "silu" && runs_on_tiles(dtype) && fits_pairs(features);
}

at::Tensor gated_linear(const std::string& function, const at::Tensor& x, const at::Tensor& gate,
                        const at::Tensor& up) {
  if (!fuses_gated_linear(function, x.size(-1), x.scalar_type()) || !fits_tiles(x, gate) || !fits_tiles(x, up))
    return gated_activation(function, kernels::linear(x, gate), kernels::linear(x, up));
  return shaped_like(x, gated_on_tiles(rows_of(x), gate.contiguous(), up.contiguous()));
}

std::uint64_t linear_workspace_bytes(std::int64_t rows, std::int64_t features, at::ScalarType dtype, int threads) {
  if (!runs_on_tiles(dtype)) return 0;
  const std::int64_t pairs = (features + 1) / 2, apart = InputRows::shares_sets(features) ? rows * (pairs + 16) : 0;
  const std::int64_t sums = std::min(rows, kSummedRows) * threads;
  return sizeof(float) *
         static_cast<std::uint64_t>(cpu::kProductPanel * (pairs * panels_at_once(pairs) + sums) + apart);
}

}  // namespace layerpress::kernels
