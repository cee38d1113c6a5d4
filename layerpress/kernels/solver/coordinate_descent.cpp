#include "layerpress/kernels/solver/coordinate_descent.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <numeric>

#include "layerpress/kernels/cpu/table.h"
#include "layerpress/kernels/products/wide_rows.h"
#include "layerpress/kernels/solver/row_tiles.h"
#include "layerpress/kernels/tasks.h"

namespace layerpress::kernels {
namespace {

constexpr std::int64_t kLanes = cpu::kColumnTile;
constexpr std::int64_t kStep = 64;  // columns, within which a column's change is passed on at once

/// Both triangles of the dampened Gram matrix.
at::Tensor dampened_gram(const at::Tensor& gram, double damping) {
  at::Tensor whole = gram.triu();
  whole += gram.triu(1).t();
  whole.diagonal().add_(damping * gram.diagonal().mean().item<double>());
  return whole;
}

/// Of a tile, whose rows are lanes.
struct DescentState {
  at::Tensor difference;                  ///< fp32 [K, kLanes]: w - q
  at::Tensor levels;                      ///< fp32 [K, kLanes]: codes
  at::Tensor scale, inverse, zero_point;  ///< fp32 [groups, kLanes]
};

class Descent {
 public:
  Descent(const std::vector<GptqWeight>& weights, const at::Tensor& gram, const ElementType& element,
          const CoordinateDescent& options, double loss_damping)
      : weights_(weights),
        options_(options),
        least_(static_cast<float>(element.minimum)),
        most_(static_cast<float>(element.maximum)),
        columns_(gram.size(0)),
        group_columns_(weights.front().scales.columns_per_group),
        hessian_(dampened_gram(gram, options.damping)),
        less_damping_((options.damping - loss_damping) * gram.diagonal().mean().item<double>()),
        place_(at::arange(columns_, at::kLong)),
        tiles_(cut_into_tiles(weights)) {}

  double run(std::vector<at::Tensor>& codes) const {
    const auto count = static_cast<std::int64_t>(tiles_.size());
    const std::int64_t together = tiles_together(columns_, count);
    std::vector<double> losses(tiles_.size(), 0.0);
    share_tasks((count + together - 1) / together, [&](auto&& next) {
      std::vector<DescentState> states;
      at::Tensor running = at::empty({kStep, kLanes}, at::kFloat),
                 part = at::empty({cpu::kColumnDepth, kStep}, at::kFloat);
      for (std::int64_t first = next() * together; first < count; first = next() * together) {
        const std::int64_t last = std::min(first + together, count);
        while (static_cast<std::int64_t>(states.size()) < last - first) states.push_back(new_state());
        for (std::int64_t t = first; t < last; ++t) load(tiles_[t], codes, states[t - first]);
        const auto each_block = [&](auto&& act) {
          for (std::int64_t begin = 0; begin < columns_; begin += kStep)
            for (std::int64_t t = first; t < last; ++t)
              act(t, begin, gradient(begin, states[t - first], part, running));
        };
        for (int sweep = 0; sweep < options_.sweeps; ++sweep)
          each_block([&](std::int64_t t, std::int64_t begin, float* g) { descend_block(begin, g, states[t - first]); });
        each_block([&](std::int64_t t, std::int64_t begin, const float* g) {
          losses[static_cast<std::size_t>(t)] += loss_of(begin, g, tiles_[t].rows, states[t - first]);
        });
        for (std::int64_t t = first; t < last; ++t) store(tiles_[t], states[t - first], codes);
      }
    });
    return std::accumulate(losses.begin(), losses.end(), 0.0);
  }

 private:
  DescentState new_state() const {
    DescentState state;
    state.difference = at::empty({columns_, kLanes}, at::kFloat);
    state.levels = at::empty({columns_, kLanes}, at::kFloat);
    const std::int64_t groups = weights_.front().scales.scale.size(1);
    for (at::Tensor* lanes : {&state.scale, &state.inverse, &state.zero_point})
      *lanes = at::zeros({groups, kLanes}, at::kFloat);
    return state;
  }

  void load(const RowTile& tile, const std::vector<at::Tensor>& codes, DescentState& state) const {
    const GptqWeight& weight = weights_[tile.weight];
    std::vector<float> buffer;
    cpu::table().column_tile_load(wide_rows(weight.weight, tile.first, tile.rows, buffer), tile.rows, columns_,
                                  place_.const_data_ptr<std::int64_t>(), state.difference.data_ptr<float>());
    const at::Tensor levels = codes[tile.weight].slice(0, tile.first, tile.first + tile.rows).to(at::kFloat);
    cpu::table().column_tile_load(levels.const_data_ptr<float>(), tile.rows, columns_,
                                  place_.const_data_ptr<std::int64_t>(), state.levels.data_ptr<float>());
    const auto lanes = [&](const at::Tensor& blocks, at::Tensor& target) {
      const at::Tensor rows = blocks.slice(0, tile.first, tile.first + tile.rows);
      target.slice(1, 0, tile.rows).copy_(rows.t());
      target.slice(1, tile.rows, kLanes).copy_(rows[tile.rows - 1].unsqueeze(1));
    };
    lanes(weight.scales.scale, state.scale);
    if (weight.scales.zero_point.defined()) lanes(weight.scales.zero_point, state.zero_point);
    state.inverse.copy_(state.scale.reciprocal().masked_fill(state.scale.eq(0), 0));
    const at::Tensor group = place_.floor_divide(group_columns_);
    state.difference.sub_((state.levels - state.zero_point.index_select(0, group)) *
                          state.scale.index_select(0, group));
  }

  void store(const RowTile& tile, const DescentState& state, std::vector<at::Tensor>& codes) const {
    // No operation of ATen: codes may be inference tensors, which other threads must not change.
    std::int8_t* rows = codes[tile.weight].data_ptr<std::int8_t>() + tile.first * columns_;
    const float* levels = state.levels.const_data_ptr<float>();
    for (std::int64_t row = 0; row < tile.rows; ++row)
      for (std::int64_t j = 0; j < columns_; ++j)
        rows[row * columns_ + j] = static_cast<std::int8_t>(levels[j * kLanes + row]);
  }

  /// (w - q) H of a block's columns, [kStep, kLanes] in `running`. `part` has room for the rows of H that are read together.
  float* gradient(std::int64_t begin, const DescentState& state, at::Tensor& part, at::Tensor& running) const {
    const std::int64_t width = std::min(kStep, columns_ - begin);
    float* g = running.data_ptr<float>();
    std::fill_n(g, width * kLanes, 0.0f);
    for (std::int64_t first = 0; first < columns_; first += cpu::kColumnDepth) {
      const std::int64_t count = std::min(cpu::kColumnDepth, columns_ - first);
      const float* factors = hessian_.const_data_ptr<float>() + first * columns_ + begin;
      std::int64_t stride = columns_;
      if (columns_ > kCachedColumns) {
        auto* copy = part.data_ptr<float>();
        for (std::int64_t i = 0; i < count; ++i) std::copy_n(factors + i * columns_, width, copy + i * kStep);
        factors = copy, stride = kStep;
      }
      cpu::table().column_block_add({.residual = state.difference.const_data_ptr<float>() + first * kLanes,
                                     .count = count,
                                     .factors = factors,
                                     .stride = stride,
                                     .columns = width},
                                    g);
    }
    return g;
  }

  void descend_block(std::int64_t begin, float* g, DescentState& state) const {
    constexpr float kRound = 12582912.0f;  // 1.5 * 2^23: adding it rounds to the nearest integer, half to even
    const std::int64_t width = std::min(kStep, columns_ - begin);
    auto* difference = state.difference.data_ptr<float>();
    auto* levels = state.levels.data_ptr<float>();
    for (std::int64_t j = 0; j < width; ++j) {
      const float* row = hessian_.const_data_ptr<float>() + (begin + j) * columns_ + begin;
      if (!(row[j] > 0)) continue;
      const float step = 1 / row[j];
      const std::int64_t group = (begin + j) / group_columns_ * kLanes;
      const float* scale = state.scale.const_data_ptr<float>() + group;
      const float* inverse = state.inverse.const_data_ptr<float>() + group;
      float* own = levels + (begin + j) * kLanes;
      float change[kLanes];
      float any = 0;
      for (std::int64_t lane = 0; lane < kLanes; ++lane) {
        const float wanted = std::min(std::max(own[lane] + g[j * kLanes + lane] * step * inverse[lane], least_), most_);
        const float level = (wanted + kRound) - kRound;
        change[lane] = (level - own[lane]) * scale[lane];
        own[lane] = level;
        difference[(begin + j) * kLanes + lane] -= change[lane];
        any = std::max(any, std::abs(change[lane]));
      }
      if (any == 0) continue;
      for (std::int64_t k = j + 1; k < width; ++k)
        for (std::int64_t lane = 0; lane < kLanes; ++lane) g[k * kLanes + lane] -= row[k] * change[lane];
    }
  }

  double loss_of(std::int64_t begin, const float* g, std::int64_t rows, const DescentState& state) const {
    const std::int64_t width = std::min(kStep, columns_ - begin);
    const float* difference = state.difference.const_data_ptr<float>() + begin * kLanes;
    double loss = 0;
    for (std::int64_t i = 0; i < width; ++i)
      for (std::int64_t lane = 0; lane < rows; ++lane) {
        const double d = difference[i * kLanes + lane];
        loss += d * (g[i * kLanes + lane] - less_damping_ * d);
      }
    return loss;
  }

  const std::vector<GptqWeight>& weights_;
  CoordinateDescent options_;
  float least_, most_;
  std::int64_t columns_, group_columns_;
  at::Tensor hessian_;
  double less_damping_;
  at::Tensor place_;  // int64 [K]: columns stay in their order
  std::vector<RowTile> tiles_;
};

}  // namespace

double descend(const std::vector<GptqWeight>& weights, const at::Tensor& gram, const ElementType& element,
               const CoordinateDescent& options, double loss_damping, std::vector<at::Tensor>& codes) {
  std::vector<GptqWeight> contiguous = weights;
  for (GptqWeight& weight : contiguous) weight.weight = weight.weight.contiguous();
  return Descent(contiguous, gram, element, options, loss_damping).run(codes);
}

std::uint64_t descend_workspace(std::int64_t rows, std::int64_t columns, std::int64_t groups) {
  const std::int64_t threads = std::min<std::int64_t>(rows, at::get_num_threads());
  // Differences, levels and a tile's weights and codes in fp32, scales; the block's gradients and the part of H.
  const std::int64_t per_tile = kLanes * 4 * (6 * columns + 6 * groups);
  const std::int64_t per_thread =
      tiles_together(columns, rows) * per_tile + 4 * kStep * (kLanes + cpu::kColumnDepth) + 4 * kLanes * columns;
  return static_cast<std::uint64_t>(threads * per_thread + 2 * 4 * columns * columns + 32 * columns + 64 * rows);
}

double descend_flops(double elements, double columns, const CoordinateDescent& options) {
  return 2 * elements * columns * (options.sweeps + 1);
}

}  // namespace layerpress::kernels
