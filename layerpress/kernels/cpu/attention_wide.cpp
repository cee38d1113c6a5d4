// Attention in fp32, a panel of query rows at a time: transposed scores K Qᵀ, a softmax over the keys of every query
// beside the others, and transposed sums VᵀP. Scores of a whole row are kept, so there is no running maximum.
#include "layerpress/kernels/cpu/attention.h"
#include "layerpress/kernels/cpu/lanes.h"
#include "layerpress/kernels/cpu/wide_tile.h"

namespace layerpress::kernels::cpu::LAYERPRESS_ISA {
namespace {

constexpr std::int64_t kQueries = kGramPanel;  // that share one pass over the keys
constexpr float kLowest = -3.0e38f;

struct Workspace {
  float* keys;     // [groups of kWideRows keys, head_dim, kWideRows]
  float* values;   // [keys, value_dim]
  float* queries;  // [head_dim, kQueries]
  float* scores;   // [keys, kQueries], then weights
  float* output;   // [value_dim, kQueries]
};

std::int64_t grouped(std::int64_t keys) { return (keys + kWideRows - 1) / kWideRows * kWideRows; }

/// Sets `space`, returns how many floats it takes.
std::int64_t split(const AttentionTask& task, Workspace& space) {
  constexpr std::int64_t kLine = 16;
  float* const memory = static_cast<float*>(task.workspace);
  std::int64_t taken = 0;
  const auto take = [&](std::int64_t count) {
    const std::int64_t place = taken;
    taken += (count + kLine - 1) / kLine * kLine;
    return memory == nullptr ? nullptr : memory + place;
  };
  space.keys = take(grouped(task.keys) * task.head_dim);
  space.values = take(task.keys * task.value_dim);
  space.queries = take(task.head_dim * kQueries);
  space.scores = take(task.keys * kQueries);
  space.output = take(task.value_dim * kQueries);
  return taken;
}

/// Some elements behind `values`.
const void* behind(const AttentionTask& task, const void* values, std::int64_t elements) {
  return static_cast<const char*>(values) + elements * (task.type == ValueType::kFloat ? 4 : 2);
}

void pack(const AttentionTask& task, const Workspace& space) {
  for (std::int64_t key = 0; key < task.keys; key += kWideRows) {
    const std::int64_t count = task.keys - key < kWideRows ? task.keys - key : kWideRows;
    const StoredRows rows{behind(task, task.k, key * task.key_stride), task.type, count, task.key_stride};
    wide_pack_rows(rows, task.head_dim, kWideRows, space.keys + key * task.head_dim);
  }
  with_type(task.type, [&](auto type) {
    const auto* values = static_cast<const decltype(type)*>(task.v);
    for (std::int64_t key = 0; key < task.keys; ++key)
      for (std::int64_t d = 0; d < task.value_dim; ++d)
        space.values[key * task.value_dim + d] = widen(values[key * task.value_stride + d]);
  });
}

/// Some queries, one after the other, and the keys that any of them sees.
struct Block {
  std::int64_t first, count, begin, end;
};

Block block_of(const AttentionTask& task, std::int64_t first) {
  const std::int64_t left = task.length - first, count = left < kQueries ? left : kQueries;
  if (!task.causal) return {first, count, 0, task.keys};
  const std::int64_t oldest = task.window > 0 && first + 1 > task.window ? first + 1 - task.window : 0;
  return {first, count, oldest / kWideRows * kWideRows, first + count};
}

/// The queries of a block that see a key: those from `first` to `last`.
struct Seeing {
  std::int64_t first, last;
  bool all() const { return first <= 0 && last >= kQueries - 1; }
  bool has(std::int64_t query) const { return query >= first && query <= last; }
};

Seeing seeing(const AttentionTask& task, const Block& block, std::int64_t key) {
  if (!task.causal) return {0, kQueries - 1};
  return {key - block.first, task.window > 0 ? key + task.window - 1 - block.first : kQueries - 1};
}

/// The greatest magnitude among the scores of every query, in bits, also of keys that it does not see.
void find_magnitudes(const Block& block, const float* scores, std::uint32_t* greatest) {
  for (std::int64_t j = 0; j < kQueries; ++j) greatest[j] = 0;
  for (std::int64_t key = block.begin; key < block.end; ++key, scores += kQueries)
    for (std::int64_t j = 0; j < kQueries; ++j) {
      const std::uint32_t magnitude = magnitude_bits(scores[j]);
      greatest[j] = magnitude > greatest[j] ? magnitude : greatest[j];
    }
}

/// cap * tanh(score * scale / cap).
void cap_scores(const AttentionTask& task, const Block& block, float* scores) {
  const float factor = task.scale / task.soft_cap;
  for (std::int64_t i = 0; i < (block.end - block.begin) * kQueries; ++i)
    scores[i] = task.soft_cap * hyperbolic_tangent(scores[i] * factor);
}

/// Largest score of every query.
void find_maxima(const AttentionTask& task, const Block& block, const float* scores, float* maximum) {
  for (std::int64_t j = 0; j < kQueries; ++j) maximum[j] = kLowest;
  for (std::int64_t key = block.begin; key < block.end; ++key, scores += kQueries) {
    const Seeing who = seeing(task, block, key);
    if (who.all())
      for (std::int64_t j = 0; j < kQueries; ++j) maximum[j] = scores[j] > maximum[j] ? scores[j] : maximum[j];
    else
      for (std::int64_t j = 0; j < kQueries; ++j)
        maximum[j] = who.has(j) && scores[j] > maximum[j] ? scores[j] : maximum[j];
  }
}

/// Turns scores into weights, which are not divided by their sums yet; zero where a query does not see the key.
void weigh(const AttentionTask& task, const Block& block, float scale, float* scores, const float* maximum,
           float* sum) {
  for (std::int64_t j = 0; j < kQueries; ++j) sum[j] = 0;
  for (std::int64_t key = block.begin; key < block.end; ++key, scores += kQueries) {
    const Seeing who = seeing(task, block, key);
    for (std::int64_t j = 0; j < kQueries; ++j) scores[j] = exponential((scores[j] - maximum[j]) * scale);
    if (!who.all())
      for (std::int64_t j = 0; j < kQueries; ++j) scores[j] = who.has(j) ? scores[j] : 0;
    for (std::int64_t j = 0; j < kQueries; ++j) sum[j] += scores[j];
  }
}

/// Rows of the result, divided by the sums of their weights; NaN for a query with a score that is not finite, which its
/// weights do not show.
void store(const AttentionTask& task, const Block& block, std::int64_t head, const float* output, const float* sum,
           const std::uint32_t* greatest) {
  with_type(task.type, [&](auto type) {
    using T = decltype(type);
    for (std::int64_t j = 0; j < block.count; ++j) {
      T* row = static_cast<T*>(task.output) + (block.first + j) * task.output_stride + head * task.value_dim;
      const float factor = or_nan(1.0f / sum[j], greatest[j] >= kInfinityBits);
      for (std::int64_t d = 0; d < task.value_dim; ++d) row[d] = narrow<T>(output[d * kQueries + j] * factor);
    }
  });
}

void attend(const AttentionTask& task, std::int64_t head, const Block& block, const Workspace& space) {
  const std::int64_t place = block.first * task.query_stride + head * task.head_dim;
  const StoredRows queries{behind(task, task.q, place), task.type, block.count, task.query_stride};
  wide_pack_rows(queries, task.head_dim, kQueries, space.queries);
  wide_tile({.left = space.keys + block.begin * task.head_dim,
             .left_stride = kWideRows,
             .left_group = task.head_dim * kWideRows,
             .right = space.queries,
             .right_stride = kQueries,
             .right_block = kWideColumns,
             .depth = task.head_dim,
             .sums = space.scores,
             .stride = kQueries,
             .rows = block.end - block.begin,
             .columns = kQueries});
  alignas(64) std::uint32_t greatest[kQueries];
  find_magnitudes(block, space.scores, greatest);
  if (task.soft_cap > 0) cap_scores(task, block, space.scores);
  alignas(64) float maximum[kQueries], sum[kQueries];
  find_maxima(task, block, space.scores, maximum);
  weigh(task, block, task.soft_cap > 0 ? 1.0f : task.scale, space.scores, maximum, sum);
  wide_tile({.left = space.values + block.begin * task.value_dim,
             .left_stride = task.value_dim,
             .left_group = kWideRows,
             .right = space.scores,
             .right_stride = kQueries,
             .right_block = kWideColumns,
             .depth = block.end - block.begin,
             .sums = space.output,
             .stride = kQueries,
             .rows = task.value_dim,
             .columns = kQueries});
  store(task, block, head, space.output, sum, greatest);
}

}  // namespace

std::int64_t attention_wide_workspace(const AttentionTask& task) {
  AttentionTask counted = task;
  counted.workspace = nullptr;
  Workspace space;
  return split(counted, space) * static_cast<std::int64_t>(sizeof(float));
}

void attention_wide(const AttentionTask& task) {
  Workspace space;
  split(task, space);
  pack(task, space);
  for (std::int64_t head = 0; head < task.heads; ++head)
    for (std::int64_t first = 0; first < task.length; first += kQueries)
      attend(task, head, block_of(task, first), space);
}

}  // namespace layerpress::kernels::cpu::LAYERPRESS_ISA
