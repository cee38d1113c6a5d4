#include "layerpress/gguf/blocks/block_gptq.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <numeric>
#include <vector>

#include "layerpress/base/error.h"
#include "layerpress/gguf/blocks/block_columns.h"
#include "layerpress/kernels/products/wide_rows.h"
#include "layerpress/kernels/tasks.h"

namespace layerpress::gguf {
namespace {

constexpr std::int64_t kSpan = 256;             // columns that are brought up to date together
constexpr std::int64_t kMostTilesTogether = 8;  // share each part of the factor

std::int64_t tiles_of(std::int64_t rows) { return (rows + kernels::kTileRows - 1) / kernels::kTileRows; }

/// The number of tiles that a task processes together; fewer if threads would be idle otherwise.
std::int64_t tiles_together(std::int64_t tiles) {
  return std::clamp<std::int64_t>(tiles / (2 * at::get_num_threads()), 1, kMostTilesTogether);
}

static_assert(kSpan % kMostBlockValues == 0);

/// What a thread needs for one span of columns.
struct SpanWorkspace {
  alignas(64) float originals[kSpan][kLaneCount];
  BlockTile tile;
  RoundedTile rounded, trial;
  float values[kLaneCount][kMostBlockValues];
  float weights[kBlocksTogether][kMostBlockValues];
};

/// Rows of a tile that is on its way through the columns.
struct TileRows {
  std::int64_t first = 0;
  std::int64_t count = 0;
  at::Tensor state;  ///< fp32 [columns, kTileRows]: residuals of columns that are done, then originals
};

/// Rounds rows on the CPU; threads share the tiles.
class BlockSolver {
 public:
  BlockSolver(const GridType& type, const at::Tensor& weight, const kernels::HessianFactor& factor, int passes,
              at::Tensor& blocks)
      : type_(type),
        weight_(weight),
        order_(factor.order.const_data_ptr<std::int64_t>()),
        place_(at::argsort(factor.order)),
        feedback_(factor.feedback.const_data_ptr<float>()),
        pivots_(factor.pivots.const_data_ptr<float>()),
        passes_(passes),
        blocks_(blocks.data_ptr<std::uint8_t>()),
        columns_(weight.size(1)),
        losses_(static_cast<std::size_t>(weight.size(0))) {}

  /// The loss.
  double solve() {
    const std::int64_t tiles = tiles_of(weight_.size(0)), together = tiles_together(tiles);
    const std::int64_t tasks = (tiles + together - 1) / together;
    kernels::share_tasks(tasks, [&](auto&& next) {
      const auto workspace = std::make_unique<SpanWorkspace>();
      std::vector<TileRows> own;
      for (std::int64_t t = next(); t < tasks; t = next()) {
        load(t * together, std::min(tiles, (t + 1) * together), own);
        for (std::int64_t begin = 0; begin < columns_; begin += kSpan)
          for (const TileRows& rows : own) solve_span(rows, begin, std::min(begin + kSpan, columns_), *workspace);
      }
    });
    return std::accumulate(losses_.begin(), losses_.end(), 0.0);
  }

 private:
  void load(std::int64_t first, std::int64_t last, std::vector<TileRows>& tiles) const {
    std::vector<float> buffer;
    tiles.resize(static_cast<std::size_t>(last - first));
    for (std::int64_t t = first; t < last; ++t) {
      TileRows& tile = tiles[static_cast<std::size_t>(t - first)];
      tile.first = t * kernels::kTileRows;
      tile.count = std::min(kernels::kTileRows, weight_.size(0) - tile.first);
      if (!tile.state.defined()) tile.state = at::empty({columns_, kernels::kTileRows}, at::kFloat);
      kernels::load_tile(kernels::wide_rows(weight_, tile.first, tile.count, buffer), tile.count, columns_,
                         place_.const_data_ptr<std::int64_t>(), tile.state.data_ptr<float>());
    }
  }

  /// Rounds columns [begin, end), block by block.
  void solve_span(const TileRows& rows, std::int64_t begin, std::int64_t end, SpanWorkspace& workspace) {
    float* span = rows.state.data_ptr<float>() + begin * kernels::kTileRows;
    std::copy_n(span, (end - begin) * kernels::kTileRows, workspace.originals[0]);
    add_earlier_spans(rows, begin, end);
    const std::int64_t values = type_.block_values();
    const std::size_t bytes = static_cast<std::size_t>(values) * sizeof(TileLanes);
    for (std::int64_t within = 0; within < end - begin; within += values) {
      float* own = span + within * kernels::kTileRows;
      if (within == 0)
        std::memcpy(workspace.tile.running, own, bytes);
      else
        kernels::add_earlier_columns({span, feedback_at(begin), columns_, within, within + values},
                                     workspace.tile.running[0]);
      std::memcpy(workspace.tile.originals, workspace.originals[within], bytes);
      solve_block(begin + within, workspace);
      std::memcpy(own, workspace.rounded.residual, bytes);
      store(rows, begin + within, workspace.rounded);
    }
  }

  /// Replaces the originals of a span by what earlier spans' feedback makes of them.
  void add_earlier_spans(const TileRows& rows, std::int64_t begin, std::int64_t end) const {
    float* state = rows.state.data_ptr<float>();
    alignas(64) float running[kSpan][kLaneCount];
    for (std::int64_t part = begin; part < end; part += kernels::kMostTileColumns) {
      const std::int64_t part_end = std::min(part + kernels::kMostTileColumns, end);
      kernels::add_earlier_columns({state, feedback_, columns_, part, part_end}, running[part - begin]);
      // So that the next part gets nothing from this one yet.
      std::fill(state + part * kernels::kTileRows, state + part_end * kernels::kTileRows, 0.0f);
    }
    std::copy_n(running[0], (end - begin) * kernels::kTileRows, state + begin * kernels::kTileRows);
  }

  /// The first pass chooses grids for the columns as they are before the block, the others for what the pass before rounded.
  void solve_block(std::int64_t first, SpanWorkspace& workspace) const {
    const BlockColumns columns{type_.shape().values, order_ + first, feedback_at(first), columns_, pivots_ + first};
    RoundedTile &rounded = workspace.rounded, &trial = workspace.trial;
    choose_grids(columns, workspace.tile.running, workspace, rounded);
    round_columns(type_.shape(), columns, workspace.tile, rounded);
    for (int pass = 1; pass < passes_; ++pass) {
      choose_grids(columns, pass == 1 ? rounded.fed : trial.fed, workspace, trial);
      round_columns(type_.shape(), columns, workspace.tile, trial);
      keep_better(columns.count, trial, rounded);
    }
  }

  /// Chooses the grids of all rows for `wanted`.
  void choose_grids(const BlockColumns& columns, const BlockLanes& wanted, SpanWorkspace& workspace,
                    RoundedTile& rounded) const {
    const auto count = static_cast<std::size_t>(columns.count);
    float *values = workspace.values[0], *weights = workspace.weights[0];
    for (std::size_t lane = 0; lane < kLaneCount; ++lane)
      for (int j = 0; j < columns.count; ++j) values[lane * count + columns.place(j)] = wanted[j][lane];
    for (std::size_t b = 0; b < kBlocksTogether; ++b)
      for (int j = 0; j < columns.count; ++j) weights[b * count + columns.place(j)] = columns.pivots[j];
    rounded.contents.fill({});
    for (std::size_t lane = 0; lane < kLaneCount; lane += kBlocksTogether)
      type_.choose_blocks(values + lane * count, weights, {rounded.contents.data() + lane, kBlocksTogether});
  }

  void store(const TileRows& rows, std::int64_t first, const RoundedTile& rounded) {
    const std::int64_t place = order_[first] / type_.block_values() * type_.block_bytes(),
                       bytes = type_.row_bytes(columns_);
    for (std::int64_t r = 0; r < rows.count; ++r) {
      const auto lane = static_cast<std::size_t>(r);
      losses_[static_cast<std::size_t>(rows.first) + lane] += static_cast<double>(rounded.loss[lane]);
      type_.pack(rounded.contents[lane], blocks_ + (rows.first + r) * bytes + place);
    }
  }

  /// The feedback of a column and those after it for themselves.
  const float* feedback_at(std::int64_t column) const { return feedback_ + column * columns_ + column; }

  const GridType& type_;
  const at::Tensor& weight_;
  const std::int64_t* order_;
  at::Tensor place_;  // of each column in the order
  const float *feedback_, *pivots_;
  int passes_;
  std::uint8_t* blocks_;
  std::int64_t columns_;
  std::vector<double> losses_;  // per row
};

}  // namespace

BlockGptqResult gptq_blocks(const GridType& type, const at::Tensor& weight, const kernels::HessianFactor& factor,
                            int passes) {
  const std::int64_t columns = weight.size(1);
  if (columns % type.block_values() != 0 || factor.pivots.numel() != columns)
    throw InternalError("[gguf.gptq_blocks] {} columns do not fit {} or a factor of {} columns", columns, type.name(),
                        factor.pivots.numel());
  const at::Tensor block = factor.order.floor_divide(type.block_values()).view({-1, type.block_values()});
  if (!block.eq(block.select(1, 0).unsqueeze(1)).all().item<bool>())
    throw InternalError("[gguf.gptq_blocks] the factor's order tears blocks of {} apart", type.name());
  const at::Tensor rows = weight.contiguous();
  BlockGptqResult result{at::empty({rows.size(0), type.row_bytes(columns)}, at::kByte)};
  result.loss = BlockSolver(type, rows, factor, passes, result.blocks).solve();
  return result;
}

std::uint64_t gptq_blocks_workspace(std::int64_t rows, std::int64_t columns) {
  const std::int64_t tiles = tiles_of(rows), threads = std::min<std::int64_t>(tiles, at::get_num_threads());
  const std::int64_t per_tile = columns * kernels::kTileRows * 4;  // its state, and its rows if they are converted
  return static_cast<std::uint64_t>(threads) *
             (static_cast<std::uint64_t>((tiles_together(tiles) + 1) * per_tile) + sizeof(SpanWorkspace)) +
         static_cast<std::uint64_t>(rows) * sizeof(double);
}

}  // namespace layerpress::gguf
