#include "layerpress/kernels/gptq.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <algorithm>
#include <numeric>

#include "layerpress/kernels/cpu/table.h"
#include "layerpress/kernels/tasks.h"
#include "layerpress/kernels/wide_rows.h"

namespace layerpress::kernels {
namespace {

constexpr std::int64_t kTile = cpu::kColumnTile;
// Up to so many columns the feedback matrix stays in the caches near a core, and tiles go through it one at a time.
// Beyond, tiles that go together share what is read of it, from a copy without gaps.
constexpr std::int64_t kCachedColumns = 1024;
constexpr std::int64_t kMostTilesTogether = 8;

/// Tiles that a task takes through the columns; fewer where threads would have nothing to do.
std::int64_t tiles_together(std::int64_t columns, std::int64_t tiles) {
  if (columns <= kCachedColumns) return 1;
  const std::int64_t tasks_wanted = 2 * at::get_num_threads();
  return std::clamp<std::int64_t>((tiles + tasks_wanted - 1) / tasks_wanted, 1, kMostTilesTogether);
}

/// At most kTile consecutive rows of one weight.
struct Tile {
  std::size_t weight = 0;
  std::int64_t first = 0;
  std::int64_t rows = 0;
};

std::vector<Tile> cut_into_tiles(const std::vector<GptqWeight>& weights) {
  std::vector<Tile> tiles;
  for (std::size_t w = 0; w < weights.size(); ++w) {
    const std::int64_t rows = weights[w].weight.size(0);
    for (std::int64_t first = 0; first < rows; first += kTile)
      tiles.push_back({w, first, std::min(kTile, rows - first)});
  }
  return tiles;
}

/// Columns [begin, end) of the feedback matrix.
struct FeedbackBlock {
  std::int64_t begin = 0;
  std::int64_t end = 0;
  const float* values = nullptr;  ///< [end, stride]
  std::int64_t stride = 0;
};

/// A tile on its way through the columns; its rows are lanes.
struct TileState {
  at::Tensor residual;    ///< fp32 [K, kTile] in the order of quantization: weights, block by block the residual
  at::Tensor codes;       ///< int8 [K, kTile] in the weight's order
  at::Tensor scale;       ///< fp32 [groups, kTile]
  at::Tensor zero_point;  ///< the same, or undefined
  double loss = 0;
};

/// What a thread uses for all its tasks.
struct Workspace {
  std::vector<TileState> tiles;
  std::vector<float> wide_rows;
  at::Tensor feedback;
};

/// Solves stacks of rows on the CPU, tiles over threads.
class TileSolver {
 public:
  TileSolver(const std::vector<GptqWeight>& weights, const HessianFactor& factor, const Codebook& codebook,
             std::int64_t block_size)
      : weights_(weights),
        factor_(factor),
        codebook_(cpu_codebook(codebook)),
        block_size_(std::clamp<std::int64_t>(block_size, 1, cpu::kMaximumBlock)),
        columns_(factor.order.size(0)),
        groups_(weights.front().scales.scale.size(1)),
        place_(at::argsort(factor.order)),
        group_(factor.order.floor_divide(weights.front().scales.columns_per_group).to(at::kInt)),
        tiles_(cut_into_tiles(weights)) {}

  /// Quantizes all rows into `codes`; returns the loss.
  double solve(std::vector<at::Tensor>& codes) const {
    const auto count = static_cast<std::int64_t>(tiles_.size());
    const std::int64_t together = tiles_together(columns_, count), tasks = (count + together - 1) / together;
    // One slot per tile, so that the sum depends neither on which thread ends first nor on how many tiles go together.
    std::vector<double> losses(tiles_.size(), 0.0);
    share_tasks(tasks, [&](auto&& next) {
      Workspace workspace;
      for (std::int64_t t = next(); t < tasks; t = next()) {
        const std::int64_t first = t * together;
        solve_together(first, std::min(together, count - first), workspace, codes, losses);
      }
    });
    return std::accumulate(losses.begin(), losses.end(), 0.0);
  }

 private:
  void solve_together(std::int64_t first, std::int64_t count, Workspace& workspace, std::vector<at::Tensor>& codes,
                      std::vector<double>& losses) const {
    const Tile* tiles = tiles_.data() + first;
    const auto together = static_cast<std::size_t>(count);
    while (workspace.tiles.size() < together) workspace.tiles.push_back(new_state());
    for (std::size_t t = 0; t < together; ++t) load(tiles[t], workspace.wide_rows, workspace.tiles[t]);
    for (std::int64_t begin = 0; begin < columns_; begin += block_size_) {
      const FeedbackBlock block = feedback_block(begin, workspace);
      for (std::size_t t = 0; t < together; ++t) solve_block(tiles[t], block, workspace.tiles[t]);
    }
    for (std::size_t t = 0; t < together; ++t) {
      const TileState& state = workspace.tiles[t];
      std::int8_t* rows = codes[tiles[t].weight].data_ptr<std::int8_t>() + tiles[t].first * columns_;
      cpu::table().column_tile_store(state.codes.const_data_ptr<std::int8_t>(), tiles[t].rows, columns_, rows);
      losses[static_cast<std::size_t>(first) + t] = state.loss;
    }
  }

  TileState new_state() const {
    TileState state;
    state.residual = at::empty({columns_, kTile}, at::kFloat);
    state.codes = at::empty({columns_, kTile}, at::kChar);
    state.scale = at::empty({groups_, kTile}, at::kFloat);
    if (weights_.front().scales.zero_point.defined()) state.zero_point = at::empty({groups_, kTile}, at::kFloat);
    return state;
  }

  void load(const Tile& tile, std::vector<float>& buffer, TileState& state) const {
    const auto& [weight, scales] = weights_[tile.weight];
    cpu::table().column_tile_load(wide_rows(weight, tile.first, tile.rows, buffer), tile.rows, columns_,
                                  place_.const_data_ptr<std::int64_t>(), state.residual.data_ptr<float>());
    load_scales(tile, scales.scale, state.scale);
    if (state.zero_point.defined()) load_scales(tile, scales.zero_point, state.zero_point);
    state.loss = 0;
  }

  /// Scales or zero points of a tile's rows; lanes beyond the last row repeat it.
  void load_scales(const Tile& tile, const at::Tensor& blocks, at::Tensor& lanes) const {
    const std::int64_t rows_per_group = weights_[tile.weight].scales.rows_per_group;
    float* target = lanes.data_ptr<float>();
    for (std::int64_t lane = 0; lane < kTile; ++lane) {
      const std::int64_t row = tile.first + std::min(lane, tile.rows - 1);
      const float* source = blocks.const_data_ptr<float>() + row / rows_per_group * groups_;
      for (std::int64_t g = 0; g < groups_; ++g) target[g * kTile + lane] = source[g];
    }
  }

  /// The block of columns from `begin` on, copied where tiles go together.
  FeedbackBlock feedback_block(std::int64_t begin, Workspace& workspace) const {
    const std::int64_t end = std::min(begin + block_size_, columns_);
    const float* source = factor_.feedback.const_data_ptr<float>() + begin;
    if (columns_ <= kCachedColumns) return {begin, end, source, columns_};
    if (!workspace.feedback.defined()) workspace.feedback = at::empty({columns_, block_size_}, at::kFloat);
    float* copy = workspace.feedback.data_ptr<float>();
    for (std::int64_t i = 0; i < end; ++i) std::copy_n(source + i * columns_, end - begin, copy + i * block_size_);
    return {begin, end, copy, block_size_};
  }

  void solve_block(const Tile& tile, const FeedbackBlock& block, TileState& state) const {
    cpu::ColumnBlockTask task;
    task.begin = block.begin;
    task.end = block.end;
    task.rows = tile.rows;
    task.residual = state.residual.data_ptr<float>();
    task.codes = state.codes.data_ptr<std::int8_t>();
    task.feedback = block.values;
    task.feedback_stride = block.stride;
    task.pivots = factor_.pivots.const_data_ptr<float>();
    task.scales = state.scale.const_data_ptr<float>();
    if (state.zero_point.defined()) task.zero_points = state.zero_point.const_data_ptr<float>();
    task.group_of_column = group_.const_data_ptr<std::int32_t>();
    task.order = factor_.order.const_data_ptr<std::int64_t>();
    task.codebook = codebook_;
    state.loss += cpu::table().column_block(task);
  }

  const std::vector<GptqWeight>& weights_;
  const HessianFactor& factor_;
  cpu::Codebook codebook_;
  std::int64_t block_size_, columns_, groups_;
  at::Tensor place_;  // int64 [K]: when each column of the weight is quantized
  at::Tensor group_;  // int32 [K], group of each column in the order of quantization
  std::vector<Tile> tiles_;
};

/// The same with ATen operations, column by column, for other devices; codes of one weight.
at::Tensor solve_on_device(const GptqWeight& task, const HessianFactor& factor, const Codebook& codebook,
                           double& total_loss) {
  const ColumnScales& scales = task.scales;
  at::Tensor residual = task.weight.to(at::kFloat).index_select(1, factor.order);
  at::Tensor codes = at::empty(residual.sizes(), residual.options().dtype(at::kChar));
  const at::Tensor groups = factor.order.floor_divide(scales.columns_per_group);
  const auto per_row = [&](const at::Tensor& blocks, const at::Tensor& group) {
    return blocks.index_select(1, group)
        .select(1, 0)
        .repeat_interleave(scales.rows_per_group)
        .narrow(0, 0, residual.size(0));
  };
  at::Tensor loss = at::zeros({}, residual.options().dtype(at::kDouble));
  for (std::int64_t j = 0; j < residual.size(1); ++j) {
    const at::Tensor feedback = factor.feedback.slice(0, 0, j).select(1, j);
    const at::Tensor running = residual.select(1, j) + residual.slice(1, 0, j).mv(feedback);
    const at::Tensor group = groups.slice(0, j, j + 1);
    const at::Tensor scale = per_row(scales.scale, group);
    const at::Tensor zero = scales.zero_point.defined() ? per_row(scales.zero_point, group) : at::Tensor();
    const at::Tensor level = nearest_level(running, scale, zero, codebook);
    const at::Tensor value = level_value(level, scale, zero);
    loss += (running - value).to(at::kDouble).square().sum() * factor.pivots[j];
    residual.select(1, j).sub_(value);
    codes.select(1, j).copy_(level_codes(level, codebook));
  }
  total_loss += loss.item<double>();
  return codes.index_select(1, at::argsort(factor.order));
}

GptqResult solve_on_device(const std::vector<GptqWeight>& weights, const HessianFactor& factor,
                           const Codebook& codebook) {
  GptqResult result;
  for (const GptqWeight& weight : weights)
    result.codes.push_back(solve_on_device(weight, factor, codebook, result.loss));
  return result;
}

}  // namespace

std::uint64_t gptq_workspace(std::int64_t rows, std::int64_t columns, std::int64_t groups) {
  // Weights are not known: each row may be a tile of its own.
  const std::int64_t threads = std::min<std::int64_t>(rows, at::get_num_threads());
  const std::int64_t per_tile = kTile * (columns * 5 + groups * 8);  // residual, codes, scales and zero points
  const std::int64_t copied = columns <= kCachedColumns ? 0 : columns * cpu::kMaximumBlock;
  const std::int64_t per_thread = tiles_together(columns, rows) * per_tile + 4 * (kTile * columns + copied);
  const std::int64_t lists = columns * 48 + rows * static_cast<std::int64_t>(sizeof(Tile) + sizeof(double));
  return static_cast<std::uint64_t>(threads * per_thread + lists);
}

GptqResult gptq(const std::vector<GptqWeight>& weights, const HessianFactor& factor, const Codebook& codebook,
                std::int64_t block_size) {
  if (weights.empty()) return {};
  if (!factor.feedback.is_cpu()) return solve_on_device(weights, factor, codebook);
  std::vector<GptqWeight> contiguous;
  GptqResult result;
  for (const auto& [weight, scales] : weights) {
    const at::Tensor zero_point = scales.zero_point.defined() ? scales.zero_point.contiguous() : at::Tensor();
    contiguous.push_back({weight.contiguous(),
                          {scales.scale.contiguous(), zero_point, scales.columns_per_group, scales.rows_per_group}});
    result.codes.push_back(at::empty(weight.sizes(), at::kChar));
  }
  result.loss = TileSolver(contiguous, factor, codebook, block_size).solve(result.codes);
  return result;
}

}  // namespace layerpress::kernels
