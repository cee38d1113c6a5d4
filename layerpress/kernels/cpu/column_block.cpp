#include "layerpress/kernels/cpu/lanes.h"
#include "layerpress/kernels/cpu/quantization.h"

namespace layerpress::kernels::cpu::LAYERPRESS_ISA {
namespace {

// The sums of kStrip columns by kLanes rows stay in registers while earlier columns are added: two vectors per column.
#if defined(__AVX512F__)
constexpr std::int64_t kVector = 16, kStrip = 8;
#elif defined(__AVX__)
constexpr std::int64_t kVector = 8, kStrip = 4;
#else
constexpr std::int64_t kVector = 4, kStrip = 4;
#endif
constexpr std::int64_t kLanes = 2 * kVector;

// With plain arrays, compilers keep some of them in memory.
using Vector [[gnu::vector_size(kVector * sizeof(float)), gnu::aligned(alignof(float)), gnu::may_alias]] = float;

inline Vector& vector_at(float* values) { return *reinterpret_cast<Vector*>(values); }
inline const Vector& vector_at(const float* values) { return *reinterpret_cast<const Vector*>(values); }

/// The columns of a block, including the feedback of earlier columns.
using Running = float (*)[kColumnTile];

inline Running rows_of(float* running) { return reinterpret_cast<Running>(running); }

/// running[0 .. kColumns) += sum over `count` earlier columns of residual * feedback, for kLanes rows.
template <std::int64_t kColumns>
void add_strip(const float* residual, const float* feedback, std::int64_t stride, std::int64_t count, float* running) {
  Vector low[kColumns], high[kColumns];
  for (std::int64_t j = 0; j < kColumns; ++j) {
    low[j] = vector_at(running + j * kColumnTile);
    high[j] = vector_at(running + j * kColumnTile + kVector);
  }
  for (std::int64_t i = 0; i < count; ++i) {
    const Vector earlier_low = vector_at(residual + i * kColumnTile);
    const Vector earlier_high = vector_at(residual + i * kColumnTile + kVector);
    for (std::int64_t j = 0; j < kColumns; ++j) {
      const float factor = feedback[i * stride + j];
      low[j] += earlier_low * factor;
      high[j] += earlier_high * factor;
    }
  }
  for (std::int64_t j = 0; j < kColumns; ++j) {
    vector_at(running + j * kColumnTile) = low[j];
    vector_at(running + j * kColumnTile + kVector) = high[j];
  }
}

/// Adds the feedback of some earlier columns.
void add_feedback(const ColumnFeedback& earlier, Running running) {
  for (std::int64_t lane = 0; lane < kColumnTile; lane += kLanes) {
    std::int64_t j = 0;
    for (; j + kStrip <= earlier.columns; j += kStrip)
      add_strip<kStrip>(earlier.residual + lane, earlier.factors + j, earlier.stride, earlier.count, running[j] + lane);
    for (; j < earlier.columns; ++j)
      add_strip<1>(earlier.residual + lane, earlier.factors + j, earlier.stride, earlier.count, running[j] + lane);
  }
}

/// Quantizes column j from `running` to levels, and writes its residual.
template <typename Levels>
void quantize_column(const ColumnBlockTask& task, const Levels& levels, std::int64_t j, const float* running,
                     float* residual, float* chosen, float* loss) {
  static constexpr float kNoZeroPoints[kColumnTile] = {};
  const std::int64_t group = task.group_of_column[j] * kColumnTile;
  const float* scales = task.scales + group;
  const float* zero_points = task.zero_points == nullptr ? kNoZeroPoints : task.zero_points + group;
  const float pivot = task.pivots[j];
  const bool keeps_zeros = task.keeps_zeros;
  for (std::int64_t lane = 0; lane < kColumnTile; ++lane) {
    const float scale = scales[lane], zero_point = zero_points[lane], x = running[lane];
    const float wanted = keeps_zeros && residual[lane] == 0 ? 0.0f : x;
    const float level = levels.level(wanted / scale, zero_point);
    const float value = levels.value(level, zero_point) * scale;
    residual[lane] -= value;
    chosen[lane] = level;
    loss[lane] += pivot * (x - value) * (x - value);
  }
}

/// Adds the feedback of column j, with residual `own`, to later columns before `end`.
inline void feed_back(const ColumnBlockTask& task, std::int64_t j, const float* own, std::int64_t end,
                      Running running) {
  for (std::int64_t later = j + 1; later < end; ++later) {
    const float factor = task.feedback[(j - task.begin) * task.feedback_stride + later - task.begin];
    float* target = running[later - task.begin];
    for (std::int64_t lane = 0; lane < kColumnTile; ++lane) target[lane] += own[lane] * factor;
  }
}

/// The recursion inside the block: strip by strip, and column by column inside a strip. Consumes `running`. `residual`
/// begins with the block's first column. keep(levels, j, chosen) receives the levels of column j.
template <typename Keep>
void quantize_block(const ColumnBlockTask& task, float* residual, Running running, float* loss, Keep&& keep) {
  with_levels<Operations>(task.element, [&](auto levels) {
    for (std::int64_t begin = task.begin; begin < task.end; begin += kStrip) {
      const std::int64_t end = begin + kStrip < task.end ? begin + kStrip : task.end;
      const std::int64_t before = begin - task.begin;
      add_feedback({residual, before, task.feedback + before, task.feedback_stride, end - begin}, running + before);
      for (std::int64_t j = begin; j < end; ++j) {
        float* own = residual + (j - task.begin) * kColumnTile;
        alignas(64) float chosen[kColumnTile];
        quantize_column(task, levels, j, running[j - task.begin], own, chosen, loss);
        keep(levels, j, chosen);
        feed_back(task, j, own, end, running);
      }
    }
  });
}

}  // namespace

void column_block_add(const ColumnFeedback& earlier, float* running) { add_feedback(earlier, rows_of(running)); }

double column_block_end(const ColumnBlockTask& task, float* running) {
  alignas(64) float loss[kColumnTile] = {};
  quantize_block(task, task.residual + task.begin * kColumnTile, rows_of(running), loss,
                 [&](const auto& levels, std::int64_t j, const float* chosen) {
                   std::int8_t* codes = task.codes + task.order[j] * kColumnTile;
                   for (std::int64_t lane = 0; lane < kColumnTile; ++lane) codes[lane] = levels.encode(chosen[lane]);
                 });
  double total = 0;
  for (std::int64_t lane = 0; lane < task.rows; ++lane) total += static_cast<double>(loss[lane]);
  return total;
}

void column_block_try(const ColumnBlockTask& task, const float* running, float* loss) {
  alignas(64) float sums[kMaximumBlock * kColumnTile], residual[kMaximumBlock * kColumnTile];
  const std::size_t bytes = static_cast<std::size_t>((task.end - task.begin) * kColumnTile) * sizeof(float);
  std::memcpy(sums, running, bytes);
  std::memcpy(residual, task.residual + task.begin * kColumnTile, bytes);
  std::memset(loss, 0, kColumnTile * sizeof(float));
  quantize_block(task, residual, rows_of(sums), loss, [](const auto&, std::int64_t, const float*) {});
}

}  // namespace layerpress::kernels::cpu::LAYERPRESS_ISA
