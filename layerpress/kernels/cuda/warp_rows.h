#pragma once

#include "layerpress/kernels/cuda/column_block.h"
#include "layerpress/kernels/cuda/conversions.h"
#include "layerpress/kernels/numbers/element_levels.h"

// The recursion inside a block of columns for one row, as a warp computes it.
namespace layerpress::kernels::cuda {

constexpr std::int32_t kSlots = kMaximumBlock / kWarp;

/// The task of one of the problems.
LAYERPRESS_LANES ColumnBlockTask of_problem(ColumnBlockTask task, std::int64_t problem) {
  const std::int64_t rows = problem * task.rows;
  const std::int64_t scales = problem * ((task.rows + task.rows_per_group - 1) / task.rows_per_group) * task.groups;
  task.running += rows * task.columns;
  task.residual += rows * task.residual_stride;
  task.codes += rows * task.codes_stride;
  task.feedback += problem * task.feedback_apart;
  task.pivots += problem * task.columns_apart;
  task.group_of_column += problem * task.columns_apart;
  task.scales += scales;
  if (task.zero_points != nullptr) task.zero_points += scales;
  if (task.candidate_scales != nullptr) task.candidate_scales += rows;
  if (task.candidate_zero_points != nullptr) task.candidate_zero_points += rows;
  task.loss += rows;
  return task;
}

/// Column slot * kWarp + l of a block belongs to lane l.
struct Lane {
  float original[kSlots],
      before[kSlots];     ///< of its columns: the weight; the weight plus the feedback of earlier blocks
  float running[kSlots];  ///< the same plus the feedback of the block's own columns
  float scale[kSlots], zero_point[kSlots], pivot[kSlots];
  float residual[kSlots], level[kSlots];
  bool stays_zero[kSlots];
  float loss;
};

/// Quantizes a lane's column; returns the residual.
template <typename Levels>
LAYERPRESS_LANES float quantize_column(Lane& lane, std::int32_t slot, const Levels& levels) {
  const float x = lane.running[slot], scale = lane.scale[slot], zero_point = lane.zero_point[slot];
  const float level = levels.level((lane.stays_zero[slot] ? 0.0f : x) / scale, zero_point);
  const float value = levels.value(level, zero_point) * scale;
  lane.level[slot] = level;
  lane.residual[slot] = lane.original[slot] - value;
  lane.loss += lane.pivot[slot] * (x - value) * (x - value);
  return lane.residual[slot];
}

/// Quantizes the block's columns in sequence; returns the row's loss. `feedback` is [columns, kMaximumBlock], 0 where
/// undefined.
template <typename Warp, typename Levels>
LAYERPRESS_LANES float quantize_row(Warp& warp, const Levels& levels, const float* feedback, std::int32_t columns) {
  warp.each([](std::int32_t, Lane& lane) {
    lane.loss = 0;
    LAYERPRESS_UNROLL
    for (std::int32_t slot = 0; slot < kSlots; ++slot) lane.running[slot] = lane.before[slot];
  });
  LAYERPRESS_UNROLL
  for (std::int32_t slot = 0; slot < kSlots; ++slot) {
    for (std::int32_t own = 0; own < kWarp && slot * kWarp + own < columns; ++own) {
      const float residual = warp.of(own, [&](Lane& lane) { return quantize_column(lane, slot, levels); });
      const float* row = feedback + (slot * kWarp + own) * kMaximumBlock;
      warp.each([&](std::int32_t index, Lane& lane) {
        LAYERPRESS_UNROLL
        for (std::int32_t later = slot; later < kSlots; ++later)
          lane.running[later] += residual * row[later * kWarp + index];
      });
    }
  }
  return warp.sum([](const Lane& lane) { return lane.loss; });
}

LAYERPRESS_LANES void set_scales(Lane& lane, float scale, float zero_point) {
  LAYERPRESS_UNROLL
  for (std::int32_t slot = 0; slot < kSlots; ++slot) {
    lane.scale[slot] = scale;
    lane.zero_point[slot] = zero_point;
  }
}

/// Chooses the candidate with the smallest loss, the first one if several are equal.
template <typename Warp, typename Levels>
LAYERPRESS_LANES void choose_scales(Warp& warp, const ColumnBlockTask& task, std::int64_t row, const Levels& levels,
                                    const float* feedback) {
  float least = 0, scale = 1, zero_point = 0;
  for (std::int32_t c = 0; c < task.candidates; ++c) {
    const std::int64_t at = c * task.candidates_apart + row;
    const float own = task.candidate_scales[at];
    const float own_zero = task.candidate_zero_points == nullptr ? 0.0f : task.candidate_zero_points[at];
    warp.each([&](std::int32_t, Lane& lane) { set_scales(lane, own, own_zero); });
    const float loss = quantize_row(warp, levels, feedback, task.columns);
    if (c > 0 && !(loss < least)) continue;
    least = loss;
    scale = own;
    zero_point = own_zero;
  }
  warp.each([&](std::int32_t index, Lane& lane) {
    set_scales(lane, scale, zero_point);
    if (index > 0) return;
    const std::int64_t at = row * task.groups + task.group_of_column[0];
    task.scales[at] = scale;
    if (task.zero_points != nullptr) task.zero_points[at] = zero_point;
  });
}

/// Loads a lane's values of its columns; columns that do not exist are never quantized.
LAYERPRESS_LANES void load_lane(const ColumnBlockTask& task, std::int64_t row, std::int32_t index, Lane& lane) {
  LAYERPRESS_UNROLL
  for (std::int32_t slot = 0; slot < kSlots; ++slot) {
    const std::int32_t column = slot * kWarp + index;
    const bool exists = column < task.columns;
    lane.original[slot] = exists ? task.residual[row * task.residual_stride + column] : 0.0f;
    lane.stays_zero[slot] = task.keeps_zeros && lane.original[slot] == 0;
    lane.before[slot] = exists ? task.running[row * task.columns + column] : 0.0f;
    lane.pivot[slot] = exists ? task.pivots[column] : 0.0f;
    lane.scale[slot] = 1;
    lane.zero_point[slot] = 0;
    if (!exists || task.candidates > 0) continue;
    const std::int64_t at = row / task.rows_per_group * task.groups + task.group_of_column[column];
    lane.scale[slot] = task.scales[at];
    if (task.zero_points != nullptr) lane.zero_point[slot] = task.zero_points[at];
  }
}

template <typename Levels>
LAYERPRESS_LANES void store_lane(const ColumnBlockTask& task, std::int64_t row, std::int32_t index,
                                 const Levels& levels, const Lane& lane) {
  LAYERPRESS_UNROLL
  for (std::int32_t slot = 0; slot < kSlots; ++slot) {
    const std::int32_t column = slot * kWarp + index;
    if (column >= task.columns) continue;
    task.residual[row * task.residual_stride + column] = lane.residual[slot];
    task.codes[row * task.codes_stride + column] = levels.encode(lane.level[slot]);
  }
}

/// Processes one row of the block.
template <typename Warp, typename Levels>
LAYERPRESS_LANES void solve_row(Warp& warp, const ColumnBlockTask& task, std::int64_t row, const Levels& levels,
                                const float* feedback) {
  warp.each([&](std::int32_t index, Lane& lane) { load_lane(task, row, index, lane); });
  if (task.candidates > 0) choose_scales(warp, task, row, levels, feedback);
  const float loss = quantize_row(warp, levels, feedback, task.columns);
  warp.each([&](std::int32_t index, Lane& lane) {
    store_lane(task, row, index, levels, lane);
    if (index == 0) task.loss[row] += static_cast<double>(loss);
  });
}

}  // namespace layerpress::kernels::cuda
