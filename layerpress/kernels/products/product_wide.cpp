// Products in fp32: some rows of x and some panels of weights are widened into packed panels, and tiles multiply those.
#include <ATen/ATen.h>

#include <algorithm>

#include "layerpress/kernels/products/product.h"
#include "layerpress/kernels/tasks.h"

namespace layerpress::kernels {
namespace {

// Sizes that are packed at once: rows of x, for which weights are packed again, and panels of weights, after which
// threads synchronize.
constexpr std::int64_t kRowValues = 4 << 20;
constexpr std::int64_t kFewestRows = 192, kMostRows = 1152;
constexpr std::int64_t kPanelValues = 1 << 19;
// A task's share, and the part of the features that stays in the caches for it.
constexpr std::int64_t kTaskRows = 96;
constexpr std::int64_t kTaskPanels = 4;
constexpr std::int64_t kFeatures = 256;
constexpr std::int64_t kTileSums = kTaskRows * cpu::kProductPanel;

std::int64_t rounded_up(std::int64_t count, std::int64_t unit) { return (count + unit - 1) / unit * unit; }

std::int64_t wide_rows_at_once(std::int64_t rows, std::int64_t features) {
  const std::int64_t fitting = std::clamp(kRowValues / std::max<std::int64_t>(1, features), kFewestRows, kMostRows);
  return std::min(rounded_up(rows, kTaskRows), fitting / kTaskRows * kTaskRows);
}

std::int64_t wide_panels_at_once(std::int64_t features, int threads) {
  const std::int64_t size = std::max<std::int64_t>(1, features) * cpu::kProductPanel;
  return std::max({kPanelValues / size, kTaskPanels, static_cast<std::int64_t>(threads) / 2});
}

/// Some rows of x, packed.
class PackedRows {
 public:
  PackedRows(const at::Tensor& x, std::int64_t most)
      : x_(x), group_(cpu::table().wide_rows), memory_(at::empty({most * x.size(1)}, at::kFloat)) {}

  void pack(std::int64_t first, std::int64_t count) {
    float* packed = memory_.data_ptr<float>();
    for_each_task((count + group_ - 1) / group_, [&](std::int64_t task) {
      const cpu::StoredRows rows = stored_rows(x_, first + task * group_, group_);
      cpu::table().wide_pack_rows(rows, x_.size(1), group_, packed + task * group_ * x_.size(1));
    });
  }

  std::int64_t features() const { return x_.size(1); }
  /// Their features from `feature` on, from row `row` of those packed on: a multiple of wide_rows.
  cpu::WideTile left(std::int64_t row, std::int64_t feature) const {
    return {.left = memory_.const_data_ptr<float>() + row * features() + feature * group_,
            .left_stride = group_,
            .left_group = features() * group_};
  }

 private:
  const at::Tensor& x_;
  std::int64_t group_;
  at::Tensor memory_;
};

/// Some panels of weights, packed.
class PackedPanels {
 public:
  PackedPanels(const Product& product, std::int64_t most)
      : product_(product),
        features_(product.x.size(1)),
        memory_(at::empty({most * features_ * cpu::kProductPanel}, at::kFloat)) {}

  void pack(std::int64_t first, std::int64_t count) {
    for_each_task(2 * count, [&](std::int64_t task) {
      cpu::table().wide_pack_rows(product_.half(first + task / 2, task % 2), features_, cpu::kProductHalf,
                                  memory_.data_ptr<float>() + task * features_ * cpu::kProductHalf);
    });
  }

  const float* panel(std::int64_t p) const {
    return memory_.const_data_ptr<float>() + p * features_ * cpu::kProductPanel;
  }

 private:
  const Product& product_;
  std::int64_t features_;
  at::Tensor memory_;
};

/// Packed panels [first, last), rows [row, row + rows) of those packed.
struct TaskShare {
  std::int64_t first, last, row, rows;
};

/// sums [panels, kTaskRows, kProductPanel]. Part of the features after part, so that rows are read once for all panels.
void sum_share(const PackedRows& left, const PackedPanels& right, const TaskShare& share, float* sums) {
  const std::int64_t features = left.features();
  for (std::int64_t feature = 0; feature < features || feature == 0; feature += kFeatures)
    for (std::int64_t p = share.first; p < share.last; ++p) {
      cpu::WideTile tile = left.left(share.row, feature);
      tile.right = right.panel(p) + feature * cpu::kWideColumns;
      tile.right_stride = cpu::kWideColumns;
      tile.right_block = features * cpu::kWideColumns;
      tile.depth = std::min(kFeatures, features - feature);
      tile.sums = sums + (p - share.first) * kTileSums;
      tile.stride = tile.columns = cpu::kProductPanel;
      tile.rows = share.rows;
      tile.adds = feature > 0;
      cpu::table().wide_tile(tile);
    }
}

}  // namespace

void multiply_wide(const Product& product) {
  static_assert(cpu::kProductHalf == cpu::kWideColumns);
  const std::int64_t rows = product.x.size(0), features = product.x.size(1), panels = product.panels();
  const int threads = at::get_num_threads();
  const std::int64_t most = wide_rows_at_once(rows, features),
                     block = std::min(panels, wide_panels_at_once(features, threads));
  PackedRows left(product.x, most);
  PackedPanels right(product, block);
  for (std::int64_t row = 0; row < rows; row += most) {
    const std::int64_t some = std::min(most, rows - row), parts = (some + kTaskRows - 1) / kTaskRows;
    left.pack(row, some);
    for (std::int64_t first = 0; first < panels; first += block) {
      const std::int64_t count = std::min(block, panels - first);
      right.pack(first, count);
      const std::int64_t run = parts * count / kTaskPanels < 4 * threads ? 1 : kTaskPanels;
      const std::int64_t runs = (count + run - 1) / run;
      share_tasks(parts * runs, [&](auto&& next) {
        const at::Tensor memory = at::empty({kTaskPanels * kTileSums}, at::kFloat);
        for (std::int64_t task = next(); task < parts * runs; task = next()) {
          const std::int64_t part = task / runs * kTaskRows, panel = task % runs * run;
          const TaskShare share{panel, std::min(count, panel + run), part, std::min(kTaskRows, some - part)};
          float* sums = memory.data_ptr<float>();
          sum_share(left, right, share, sums);
          for (std::int64_t p = share.first; p < share.last; ++p)
            product.finish(first + p, row + part, share.rows, sums + (p - share.first) * kTileSums);
        }
      });
    }
  }
}

std::uint64_t wide_workspace_bytes(std::int64_t rows, std::int64_t features, int threads) {
  const std::int64_t packed =
      wide_rows_at_once(rows, features) + wide_panels_at_once(features, threads) * cpu::kProductPanel;
  return sizeof(float) * static_cast<std::uint64_t>(packed * features + threads * kTaskPanels * kTileSums);
}

}  // namespace layerpress::kernels
