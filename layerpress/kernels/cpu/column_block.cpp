#include "layerpress/kernels/cpu/codebooks.h"
#include "layerpress/kernels/cpu/quantization.h"

namespace layerpress::kernels::cpu::LAYERPRESS_ISA {
namespace {

// Sums that stay in registers while earlier columns go by, kStrip columns by kLanes rows: two vectors of each column.
#if defined(__AVX512F__)
constexpr std::int64_t kVector = 16, kStrip = 8;
#elif defined(__AVX__)
constexpr std::int64_t kVector = 8, kStrip = 4;
#else
constexpr std::int64_t kVector = 4, kStrip = 4;
#endif
constexpr std::int64_t kLanes = 2 * kVector;
constexpr std::int64_t kDepth = 256;  // earlier columns at a time: their part of a tile fits in the first caches

// Of plain arrays compilers keep some in memory.
using Vector [[gnu::vector_size(kVector * sizeof(float)), gnu::aligned(alignof(float)), gnu::may_alias]] = float;

inline Vector& vector_at(float* values) { return *reinterpret_cast<Vector*>(values); }
inline const Vector& vector_at(const float* values) { return *reinterpret_cast<const Vector*>(values); }

/// A block's columns with the feedback of earlier ones.
using Running = float (*)[kColumnTile];

inline Running rows_of(float* running) { return reinterpret_cast<Running>(running); }

/// running[0 .. kColumns) += sum over `count` earlier columns of residual * feedback; of kLanes rows.
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

/// The feedback of columns [first, last) on columns [begin, end) of the block; `residual` is that of column `first`.
void add_feedback(const ColumnBlockTask& task, const float* residual, std::int64_t first, std::int64_t last,
                  std::int64_t begin, std::int64_t end, Running running) {
  const float* feedback = task.feedback + first * task.feedback_stride;
  const std::int64_t columns = end - task.begin;
  for (std::int64_t lane = 0; lane < kColumnTile; lane += kLanes) {
    std::int64_t j = begin - task.begin;
    for (; j + kStrip <= columns; j += kStrip)
      add_strip<kStrip>(residual + lane, feedback + j, task.feedback_stride, last - first, running[j] + lane);
    for (; j < columns; ++j)
      add_strip<1>(residual + lane, feedback + j, task.feedback_stride, last - first, running[j] + lane);
  }
}

template <typename Levels>
inline void encode(const Levels& levels, const float* chosen, std::int8_t* codes) {
  for (std::int64_t lane = 0; lane < kColumnTile; ++lane) codes[lane] = levels.encode(chosen[lane]);
}

/// Quantizes column j, of which `running` is known, to levels; leaves its residual.
template <typename Levels>
void quantize_column(const ColumnBlockTask& task, const Levels& levels, std::int64_t j, const float* running,
                     float* residual, float* chosen, float* loss) {
  static constexpr float kNoZeroPoints[kColumnTile] = {};
  const std::int64_t group = task.group_of_column[j] * kColumnTile;
  const float* scales = task.scales + group;
  const float* zero_points = task.zero_points == nullptr ? kNoZeroPoints : task.zero_points + group;
  const float pivot = task.pivots[j];
  for (std::int64_t lane = 0; lane < kColumnTile; ++lane) {
    const float scale = scales[lane], zero_point = zero_points[lane], x = running[lane];
    const float level = levels.level(x / scale, zero_point);
    const float value = levels.value(level, zero_point) * scale;
    residual[lane] -= value;
    chosen[lane] = level;
    loss[lane] += pivot * (x - value) * (x - value);
  }
}

/// The recursion inside the block: strip by strip, and inside a strip column by column. quantize(j, running) leaves what
/// column j feeds back to later ones in its row of `fed`, which begins with the block's first column.
template <typename Quantize>
void recurse(const ColumnBlockTask& task, const float* fed, Running running, Quantize&& quantize) {
  for (std::int64_t begin = task.begin; begin < task.end; begin += kStrip) {
    const std::int64_t end = begin + kStrip < task.end ? begin + kStrip : task.end;
    add_feedback(task, fed, task.begin, begin, begin, end, running);
    for (std::int64_t j = begin; j < end; ++j) {
      quantize(j, running[j - task.begin]);
      const float* residual = fed + (j - task.begin) * kColumnTile;
      for (std::int64_t later = j + 1; later < end; ++later) {
        const float factor = task.feedback[j * task.feedback_stride + later - task.begin];
        float* target = running[later - task.begin];
        for (std::int64_t lane = 0; lane < kColumnTile; ++lane) target[lane] += residual[lane] * factor;
      }
    }
  }
}

/// The feedback of columns [0, last) on the whole block.
void add_all_feedback(const ColumnBlockTask& task, std::int64_t last, Running running) {
  for (std::int64_t first = 0; first < last; first += kDepth)
    add_feedback(task, task.residual + first * kColumnTile, first, first + kDepth < last ? first + kDepth : last,
                 task.begin, task.end, running);
}

double sum_of_rows(const ColumnBlockTask& task, const float* lanes) {
  double total = 0;
  for (std::int64_t lane = 0; lane < task.rows; ++lane) total += static_cast<double>(lanes[lane]);
  return total;
}

}  // namespace

void column_block_begin(const ColumnBlockTask& task, float* running) {
  std::memcpy(running, task.residual + task.begin * kColumnTile,
              static_cast<std::size_t>((task.end - task.begin) * kColumnTile) * sizeof(float));
  add_all_feedback(task, task.begin, rows_of(running));
}

double column_block_end(const ColumnBlockTask& task, float* running) {
  float* residual = task.residual + task.begin * kColumnTile;
  std::int8_t* codes = task.codes;
  alignas(64) float loss[kColumnTile] = {};
  with_levels(task.codebook, [&](auto levels) {
    recurse(task, residual, rows_of(running), [&](std::int64_t j, const float* sums) {
      alignas(64) float chosen[kColumnTile];
      quantize_column(task, levels, j, sums, residual + (j - task.begin) * kColumnTile, chosen, loss);
      encode(levels, chosen, codes + task.order[j] * kColumnTile);
    });
  });
  return sum_of_rows(task, loss);
}

void column_block_try(const ColumnBlockTask& task, const float* running, float* loss) {
  alignas(64) float sums[kMaximumBlock * kColumnTile], residual[kMaximumBlock * kColumnTile];
  const std::size_t bytes = static_cast<std::size_t>((task.end - task.begin) * kColumnTile) * sizeof(float);
  std::memcpy(sums, running, bytes);
  std::memcpy(residual, task.residual + task.begin * kColumnTile, bytes);
  std::memset(loss, 0, kColumnTile * sizeof(float));
  with_levels(task.codebook, [&](auto levels) {
    recurse(task, residual, rows_of(sums), [&](std::int64_t j, const float* own) {
      alignas(64) float chosen[kColumnTile];
      quantize_column(task, levels, j, own, residual + (j - task.begin) * kColumnTile, chosen, loss);
    });
  });
}

}  // namespace layerpress::kernels::cpu::LAYERPRESS_ISA
