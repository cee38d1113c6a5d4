#include "layerpress/kernels/solver/column_solver.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <algorithm>
#include <array>
#include <numeric>

#include "layerpress/kernels/cpu/table.h"
#include "layerpress/kernels/products/wide_rows.h"
#include "layerpress/kernels/solver/row_tiles.h"
#include "layerpress/kernels/tasks.h"

namespace layerpress::kernels {
namespace {

constexpr std::int64_t kTile = cpu::kColumnTile;
/// Columns [begin, end) in the order of quantization.
struct Block {
  std::int64_t begin = 0;
  std::int64_t end = 0;
};

/// A block's columns of some rows of the feedback matrix.
struct FeedbackPart {
  const float* values = nullptr;  ///< [rows, stride]
  std::int64_t stride = 0;
};

/// The state of a tile; its rows are lanes.
struct TileState {
  at::Tensor residual;    ///< fp32 [K, kTile] in the order of quantization: the weights; block by block, the residuals
  at::Tensor codes;       ///< int8 [K, kTile] in the weight's order
  at::Tensor scale;       ///< fp32 [groups, kTile]
  at::Tensor zero_point;  ///< the same, or undefined
  at::Tensor running;     ///< fp32 [block's columns, kTile]: the originals with the feedback of earlier columns
  double loss = 0;
};

/// Memory that a thread reuses for all its tasks.
struct Workspace {
  std::vector<TileState> tiles;
  std::vector<float> wide_rows;
  at::Tensor feedback;
};

/// Solves stacks of rows on the CPU; threads share the tiles.
class ColumnSolver {
 public:
  ColumnSolver(const std::vector<GptqWeight>& weights, const HessianFactor& factor, const ElementType& element,
               std::int64_t block_size, const std::optional<GroupSearch>& search)
      : weights_(weights),
        factor_(factor),
        search_(search),
        element_(element),
        block_size_(search ? cpu::kMaximumBlock : std::clamp<std::int64_t>(block_size, 1, cpu::kMaximumBlock)),
        columns_(factor.order.size(0)),
        groups_(weights.front().scales.scale.size(1)),
        place_(at::argsort(factor.order)),
        group_(factor.order.floor_divide(weights.front().scales.columns_per_group).to(at::kInt)),
        tiles_(cut_into_tiles(weights)) {}

  /// Quantizes all rows into `codes`; returns the loss.
  double solve(std::vector<at::Tensor>& codes) const {
    const auto count = static_cast<std::int64_t>(tiles_.size());
    const std::int64_t together = tiles_together(columns_, count), tasks = (count + together - 1) / together;
    // One slot per tile, so that the sum depends neither on which thread ends first nor on how many tiles are processed
    // together.
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
    const RowTile* tiles = tiles_.data() + first;
    const auto together = static_cast<std::size_t>(count);
    while (workspace.tiles.size() < together) workspace.tiles.push_back(new_state());
    for (std::size_t t = 0; t < together; ++t) load(tiles[t], workspace.wide_rows, workspace.tiles[t]);
    for (Block block{0, block_end(0)}; block.begin < columns_; block = {block.end, block_end(block.end)}) {
      add_earlier_columns(block, together, workspace);
      const FeedbackPart own = feedback_part(block, block, workspace);
      for (std::size_t t = 0; t < together; ++t) solve_block(tiles[t], block, own, workspace.tiles[t]);
    }
    for (std::size_t t = 0; t < together; ++t) {
      const TileState& state = workspace.tiles[t];
      std::int8_t* rows = codes[tiles[t].weight].data_ptr<std::int8_t>() + tiles[t].first * columns_;
      cpu::table().column_tile_store(state.codes.const_data_ptr<std::int8_t>(), tiles[t].rows, columns_, rows);
      losses[static_cast<std::size_t>(first) + t] = state.loss;
      if (search_) store_scales(tiles[t], state);
    }
  }

  /// Blocks are groups if scales are searched.
  std::int64_t block_end(std::int64_t begin) const {
    if (!search_) return std::min(begin + block_size_, columns_);
    const std::int32_t* group = group_.const_data_ptr<std::int32_t>();
    std::int64_t end = std::min(begin + 1, columns_);
    while (end < columns_ && group[end] == group[begin]) ++end;
    return end;
  }

  TileState new_state() const {
    TileState state;
    state.residual = at::empty({columns_, kTile}, at::kFloat);
    state.codes = at::empty({columns_, kTile}, at::kChar);
    state.scale = at::empty({groups_, kTile}, at::kFloat);
    state.running = at::empty({cpu::kMaximumBlock, kTile}, at::kFloat);
    if (weights_.front().scales.zero_point.defined()) state.zero_point = at::empty({groups_, kTile}, at::kFloat);
    return state;
  }

  void load(const RowTile& tile, std::vector<float>& buffer, TileState& state) const {
    const auto& [weight, scales, keeps_zeros] = weights_[tile.weight];
    cpu::table().column_tile_load(wide_rows(weight, tile.first, tile.rows, buffer), tile.rows, columns_,
                                  place_.const_data_ptr<std::int64_t>(), state.residual.data_ptr<float>());
    state.loss = 0;
    if (search_) return;
    load_scales(tile, scales.scale, state.scale);
    if (state.zero_point.defined()) load_scales(tile, scales.zero_point, state.zero_point);
  }

  /// Loads scales or zero points of a tile's rows; lanes beyond the last row repeat it.
  void load_scales(const RowTile& tile, const at::Tensor& blocks, at::Tensor& lanes) const {
    const std::int64_t rows_per_group = weights_[tile.weight].scales.rows_per_group;
    float* target = lanes.data_ptr<float>();
    for (std::int64_t lane = 0; lane < kTile; ++lane) {
      const std::int64_t row = tile.first + std::min(lane, tile.rows - 1);
      const float* source = blocks.const_data_ptr<float>() + row / rows_per_group * groups_;
      for (std::int64_t g = 0; g < groups_; ++g) target[g * kTile + lane] = source[g];
    }
  }

  /// A part of the feedback matrix, copied if several tiles are processed together. It has at most kColumnDepth rows.
  FeedbackPart feedback_part(const Block& rows, const Block& block, Workspace& workspace) const {
    const float* source = factor_.feedback.const_data_ptr<float>() + rows.begin * columns_ + block.begin;
    if (columns_ <= kCachedColumns) return {source, columns_};
    if (!workspace.feedback.defined())
      workspace.feedback = at::empty({cpu::kColumnDepth, cpu::kMaximumBlock}, at::kFloat);
    float* copy = workspace.feedback.data_ptr<float>();
    for (std::int64_t i = 0; i < rows.end - rows.begin; ++i)
      std::copy_n(source + i * columns_, block.end - block.begin, copy + i * cpu::kMaximumBlock);
    return {copy, cpu::kMaximumBlock};
  }

  void add_earlier_columns(const Block& block, std::size_t tiles, Workspace& workspace) const {
    const std::int64_t columns = block.end - block.begin;
    for (std::size_t t = 0; t < tiles; ++t) {
      const TileState& state = workspace.tiles[t];
      std::copy_n(state.residual.const_data_ptr<float>() + block.begin * kTile, columns * kTile,
                  state.running.data_ptr<float>());
    }
    for (std::int64_t first = 0; first < block.begin; first += cpu::kColumnDepth) {
      const Block earlier{first, std::min(first + cpu::kColumnDepth, block.begin)};
      const auto [factors, stride] = feedback_part(earlier, block, workspace);
      for (std::size_t t = 0; t < tiles; ++t) {
        const TileState& state = workspace.tiles[t];
        cpu::table().column_block_add({.residual = state.residual.const_data_ptr<float>() + first * kTile,
                                       .count = earlier.end - earlier.begin,
                                       .factors = factors,
                                       .stride = stride,
                                       .columns = columns},
                                      state.running.data_ptr<float>());
      }
    }
  }

  void solve_block(const RowTile& tile, const Block& block, const FeedbackPart& own, TileState& state) const {
    cpu::ColumnBlockTask task;
    task.begin = block.begin;
    task.end = block.end;
    task.rows = tile.rows;
    task.residual = state.residual.data_ptr<float>();
    task.codes = state.codes.data_ptr<std::int8_t>();
    task.feedback = own.values;
    task.feedback_stride = own.stride;
    task.pivots = factor_.pivots.const_data_ptr<float>();
    task.scales = state.scale.const_data_ptr<float>();
    if (state.zero_point.defined()) task.zero_points = state.zero_point.const_data_ptr<float>();
    task.group_of_column = group_.const_data_ptr<std::int32_t>();
    task.order = factor_.order.const_data_ptr<std::int64_t>();
    task.element = element_;
    task.keeps_zeros = weights_[tile.weight].keeps_zeros;
    auto* running = state.running.data_ptr<float>();
    if (search_) search_scales(task, running, state);
    state.loss += cpu::table().column_block_end(task, running);
  }

  /// Chooses the candidate with the smallest loss as the scale of each row's group. The block is this group.
  void search_scales(const cpu::ColumnBlockTask& task, const float* running, TileState& state) const {
    const GroupSearch& search = *search_;
    std::array<Range, kTile> ranges;
    for (std::int64_t j = 0; j < task.end - task.begin; ++j)
      for (std::int64_t lane = 0; lane < kTile; ++lane)
        if (!task.keeps_zeros || task.residual[(task.begin + j) * kTile + lane] != 0)
          ranges[lane].extend(running[j * kTile + lane]);
    const std::int64_t group = group_.const_data_ptr<std::int32_t>()[task.begin] * kTile;
    float* scale = state.scale.data_ptr<float>() + group;
    float* zero_point = state.zero_point.defined() ? state.zero_point.data_ptr<float>() + group : nullptr;
    std::array<Qparams, kTile> best;
    std::array<float, kTile> least;
    for (std::size_t c = 0; c < search.shrink.size(); ++c) {
      for (std::int64_t lane = 0; lane < kTile; ++lane) {
        const Qparams q = qparams_of(ranges[lane], search.shrink[c], search.rule, search.stored);
        scale[lane] = q.scale;
        if (zero_point != nullptr) zero_point[lane] = q.zero_point;
      }
      alignas(64) float loss[kTile];
      cpu::table().column_block_try(task, running, loss);
      for (std::int64_t lane = 0; lane < kTile; ++lane) {
        if (c > 0 && !(loss[lane] < least[lane])) continue;
        least[lane] = loss[lane];
        best[lane] = {scale[lane], zero_point == nullptr ? 0.0f : zero_point[lane]};
      }
    }
    for (std::int64_t lane = 0; lane < kTile; ++lane) {
      scale[lane] = best[lane].scale;
      if (zero_point != nullptr) zero_point[lane] = best[lane].zero_point;
    }
  }

  void store_scales(const RowTile& tile, const TileState& state) const {
    const ColumnScales& scales = weights_[tile.weight].scales;
    store_lanes(tile, state.scale, scales.scale);
    if (state.zero_point.defined()) store_lanes(tile, state.zero_point, scales.zero_point);
  }

  void store_lanes(const RowTile& tile, const at::Tensor& lanes, const at::Tensor& blocks) const {
    const float* source = lanes.const_data_ptr<float>();
    float* target = blocks.data_ptr<float>() + tile.first * groups_;
    for (std::int64_t r = 0; r < tile.rows; ++r)
      for (std::int64_t g = 0; g < groups_; ++g) target[r * groups_ + g] = source[g * kTile + r];
  }

  const std::vector<GptqWeight>& weights_;
  const HessianFactor& factor_;
  const std::optional<GroupSearch>& search_;
  ElementType element_;
  std::int64_t block_size_, columns_, groups_;
  at::Tensor place_;  // int64 [K]: position of each column in the order of quantization
  at::Tensor group_;  // int32 [K], group of each column in the order of quantization
  std::vector<RowTile> tiles_;
};

}  // namespace

std::uint64_t gptq_workspace(std::int64_t rows, std::int64_t columns, std::int64_t groups) {
  // The weights are unknown: each row may be a tile of its own.
  const std::int64_t threads = std::min<std::int64_t>(rows, at::get_num_threads());
  // Residual, codes, scales and zero points, running columns.
  const std::int64_t per_tile = kTile * (columns * 5 + groups * 8 + cpu::kMaximumBlock * 4);
  const std::int64_t copied = columns <= kCachedColumns ? 0 : cpu::kColumnDepth * cpu::kMaximumBlock;
  const std::int64_t per_thread = tiles_together(columns, rows) * per_tile + 4 * (kTile * columns + copied);
  const std::int64_t lists = columns * 48 + rows * static_cast<std::int64_t>(sizeof(RowTile) + sizeof(double));
  return static_cast<std::uint64_t>(threads * per_thread + lists);
}

double solve_columns(const std::vector<GptqWeight>& weights, const HessianFactor& factor, const ElementType& element,
                     std::int64_t block_size, const std::optional<GroupSearch>& search,
                     std::vector<at::Tensor>& codes) {
  std::vector<GptqWeight> contiguous;
  for (const auto& [weight, scales, keeps_zeros] : weights) {
    const at::Tensor zero_point = scales.zero_point.defined() ? scales.zero_point.contiguous() : at::Tensor();
    contiguous.push_back({weight.contiguous(),
                          {scales.scale.contiguous(), zero_point, scales.columns_per_group, scales.rows_per_group},
                          keeps_zeros});
  }
  return ColumnSolver(contiguous, factor, element, block_size, search).solve(codes);
}

}  // namespace layerpress::kernels
