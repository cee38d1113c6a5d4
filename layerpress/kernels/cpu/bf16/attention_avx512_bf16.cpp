// Causal attention with AVX-512 bf16 dot products, a block of query rows at a time: scores = Q Kᵀ, a softmax per row, P
// V. The scores of a whole row are kept, so there is no running maximum. Rows see only the keys they may attend to, in
// tiles.
#include <immintrin.h>

#include "layerpress/kernels/cpu/attention.h"
#include "layerpress/kernels/cpu/lanes.h"

namespace layerpress::kernels::cpu::LAYERPRESS_ISA {
namespace {

constexpr std::int64_t kRows = 48;     // query rows that share one pass over the keys
constexpr std::int64_t kKeyTile = 64;  // keys are padded to whole tiles
constexpr std::int64_t kWidth = 16;    // floats of a register

/// Two adjacent bf16 values along the reduction, the unit of the dot product instruction.
using Pair = std::uint32_t;

std::int64_t padded(std::int64_t length) { return (length + kKeyTile - 1) / kKeyTile * kKeyTile; }

/// sums[row + r][column + 16 n]: kR rows by kN registers; the accumulators never leave the registers.
template <int kR, int kN>
void multiply_tile(const PairProduct& product, std::int64_t row, std::int64_t column) {
  const Pair* left = product.left + row * product.left_stride;
  const Pair* right = product.right + column;
  float* sums = product.sums + row * product.sums_stride + column;
  __m512 sum[kR][kN];
  for (int r = 0; r < kR; ++r)
    for (int n = 0; n < kN; ++n) sum[r][n] = _mm512_setzero_ps();
  for (std::int64_t p = 0; p < product.pairs; ++p) {
    __m512bh columns[kN];
    for (int n = 0; n < kN; ++n)
      columns[n] = reinterpret_cast<__m512bh>(_mm512_loadu_si512(right + p * product.right_stride + n * kWidth));
    for (int r = 0; r < kR; ++r) {
      const auto pair =
          reinterpret_cast<__m512bh>(_mm512_set1_epi32(static_cast<int>(left[r * product.left_stride + p])));
      for (int n = 0; n < kN; ++n) sum[r][n] = _mm512_dpbf16_ps(sum[r][n], pair, columns[n]);
    }
  }
  for (int r = 0; r < kR; ++r)
    for (int n = 0; n < kN; ++n) _mm512_storeu_ps(sums + r * product.sums_stride + n * kWidth, sum[r][n]);
}

template <int kN>
void multiply_columns(const PairProduct& product, std::int64_t column) {
  std::int64_t r = 0;
  for (; r + 6 <= product.rows; r += 6) multiply_tile<6, kN>(product, r, column);
  for (; r + 2 <= product.rows; r += 2) multiply_tile<2, kN>(product, r, column);
  for (; r < product.rows; ++r) multiply_tile<1, kN>(product, r, column);
}

struct Workspace {
  Pair* keys;       // [head_dim / 2, padded length]
  Pair* values;     // [padded length / 2, head_dim]
  float* scores;    // [kRows, padded length]
  Bits16* weights;  // [kRows, padded length]
  float* output;    // [kRows, head_dim]
};

std::int64_t aligned(std::int64_t bytes) { return (bytes + 63) / 64 * 64; }

Workspace split(void* memory, std::int64_t keys, std::int64_t head_dim) {
  char* next = static_cast<char*>(memory);
  const auto take = [&](std::int64_t bytes) {
    char* taken = next;
    next += aligned(bytes);
    return taken;
  };
  Workspace space;
  space.keys = reinterpret_cast<Pair*>(take(keys * head_dim * 2));
  space.values = reinterpret_cast<Pair*>(take(keys * head_dim * 2));
  space.scores = reinterpret_cast<float*>(take(kRows * keys * 4));
  space.weights = reinterpret_cast<Bits16*>(take(kRows * keys * 2));
  space.output = reinterpret_cast<float*>(take(kRows * head_dim * 4));
  return space;
}

/// Keys transposed to [pair of features][key]; values to [pair of keys][feature]. Padding is zero.
void pack(const AttentionTask& task, std::int64_t keys, const Workspace& space) {
  const auto *k = static_cast<const Bits16*>(task.k), *v = static_cast<const Bits16*>(task.v);
  // By tiles of 16 keys, so that each store fills a cache line.
  for (std::int64_t first = 0; first < keys; first += kWidth) {
    for (std::int64_t p = 0; p < task.head_dim / 2; ++p) {
      Pair line[kWidth] = {};
      for (std::int64_t key = 0; key < kWidth && first + key < task.length; ++key)
        std::memcpy(&line[key], k + (first + key) * task.key_stride + 2 * p, sizeof(Pair));
      std::memcpy(space.keys + p * keys + first, line, sizeof(line));
    }
  }
  for (std::int64_t p = 0; p < keys / 2; ++p) {
    const Bits16* even = v + 2 * p * task.value_stride;
    const bool has_even = 2 * p < task.length, has_odd = 2 * p + 1 < task.length;
    for (std::int64_t d = 0; d < task.head_dim; ++d) {
      const Pair low = has_even ? even[d] : 0;
      const Pair high = has_odd ? even[task.value_stride + d] : 0;
      space.values[p * task.head_dim + d] = low | (high << 16);
    }
  }
}

/// e^x of x <= 0, as exponential() in lanes.h.
__m512 exponentials(__m512 x) {
  const auto all = [](float value) { return _mm512_set1_ps(value); };
  x = _mm512_maskz_max_ps(0xFFFF, x, all(-87.0f));
  const __m512 n = _mm512_maskz_roundscale_ps(0xFFFF, x * all(1.44269504088896341f), 0);
  const __m512 r = (x - n * all(0.693359375f)) + n * all(2.12194440e-4f);
  constexpr float kNext[] = {1.3981999507e-3f, 8.3334519073e-3f, 4.1665795894e-2f, 1.6666665459e-1f, 5.0000001201e-1f};
  __m512 p = all(1.9875691500e-4f);
  for (const float next : kNext) p = p * r + all(next);
  return _mm512_maskz_scalef_ps(0xFFFF, p * r * r + r + all(1.0f), n);
}

/// Of the lanes. (In memory, because g++ 12 warns about its own intrinsics that do it.)
float largest(__m512 values) {
  alignas(64) float lanes[kWidth];
  _mm512_store_ps(lanes, values);
  float result = lanes[0];
  for (const float lane : lanes) result = lane > result ? lane : result;
  return result;
}
float sum_of(__m512 values) {
  alignas(64) float lanes[kWidth];
  _mm512_store_ps(lanes, values);
  float result = 0;
  for (const float lane : lanes) result += lane;
  return result;
}

/// Keys [first, last], by registers of kWidth keys: those of the first and of the last one are masked.
struct SeenKeys {
  std::int64_t first, last;
  std::int64_t begin() const { return first / kWidth * kWidth; }
  std::int64_t end() const { return last / kWidth * kWidth + kWidth; }
  __mmask16 mask(std::int64_t key) const {
    const unsigned before = key < first ? 0xFFFFu << (first - key) : 0xFFFFu;
    const unsigned after = key + kWidth > last ? 0xFFFFu >> (key + kWidth - 1 - last) : 0xFFFFu;
    return static_cast<__mmask16>(before & after);
  }
};

/// Softmax of one row of scores over keys [first, last]; weights outside are zero from `begin` to `limit`. Returns 1 / sum, or NaN
/// if a score is not finite, which the weights do not show.
float softmax_row(const float* scores, Bits16* weights, std::int64_t first, std::int64_t last, std::int64_t begin,
                  std::int64_t limit, float scale) {
  const SeenKeys keys{first, last};
  const __m512 lowest = _mm512_set1_ps(-3.0e38f);
  __m512 maxima = lowest;
  for (std::int64_t i = keys.begin(); i < keys.end(); i += kWidth)
    maxima = _mm512_maskz_max_ps(0xFFFF, maxima, _mm512_mask_loadu_ps(lowest, keys.mask(i), scores + i));
  const __m512 maximum = _mm512_set1_ps(largest(maxima)), factor = _mm512_set1_ps(scale);
  __m512 sums = _mm512_setzero_ps();
  __mmask16 infinite = 0;
  for (std::int64_t i = begin; i < keys.begin(); i += kWidth)
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(weights + i), _mm256_setzero_si256());
  for (std::int64_t i = keys.begin(); i < keys.end(); i += kWidth) {
    const __mmask16 mask = keys.mask(i);
    const __m512 score = _mm512_maskz_loadu_ps(mask, scores + i);
    const __m512i magnitude = _mm512_maskz_and_epi32(mask, _mm512_castps_si512(score), _mm512_set1_epi32(0x7FFFFFFF));
    infinite |= _mm512_cmpge_epu32_mask(magnitude, _mm512_set1_epi32(kInfinityBits));
    const __m512 weight = _mm512_maskz_mov_ps(mask, exponentials((score - maximum) * factor));
    sums += weight;
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(weights + i), reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(weight)));
  }
  for (std::int64_t i = keys.end(); i < limit; i += kWidth)
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(weights + i), _mm256_setzero_si256());
  return or_nan(1.0f / sum_of(sums), infinite != 0);
}

/// Attention of query rows [first_row, first_row + rows) of one head.
void attend(const AttentionTask& task, std::int64_t head, std::int64_t first_row, std::int64_t rows, std::int64_t keys,
            const Workspace& space) {
  // The keys that any of the rows sees, extended to whole tiles.
  const std::int64_t oldest = task.window > 0 && first_row + 1 > task.window ? first_row + 1 - task.window : 0;
  const std::int64_t begin = oldest / kKeyTile * kKeyTile;
  const std::int64_t end = padded(first_row + rows);
  const Bits16* q = static_cast<const Bits16*>(task.q) + first_row * task.query_stride + head * task.head_dim;
  attention_product_entry({.left = reinterpret_cast<const Pair*>(q),
                           .left_stride = task.query_stride / 2,
                           .right = space.keys + begin,
                           .right_stride = keys,
                           .sums = space.scores + begin,
                           .sums_stride = keys,
                           .rows = rows,
                           .columns = end - begin,
                           .pairs = task.head_dim / 2});
  float factor[kRows];
  for (std::int64_t r = 0; r < rows; ++r) {
    const std::int64_t last = first_row + r;
    const std::int64_t first = task.window > 0 && last + 1 > task.window ? last + 1 - task.window : 0;
    factor[r] = softmax_row(space.scores + r * keys, space.weights + r * keys, first, last, begin, end, task.scale);
  }
  attention_product_entry({.left = reinterpret_cast<const Pair*>(space.weights + begin),
                           .left_stride = keys / 2,
                           .right = space.values + begin / 2 * task.head_dim,
                           .right_stride = task.head_dim,
                           .sums = space.output,
                           .sums_stride = task.head_dim,
                           .rows = rows,
                           .columns = task.head_dim,
                           .pairs = (end - begin) / 2});
  for (std::int64_t r = 0; r < rows; ++r) {
    Bits16* out = static_cast<Bits16*>(task.output) + (first_row + r) * task.output_stride + head * task.head_dim;
    for (std::int64_t d = 0; d < task.head_dim; d += kWidth) {
      const __m512 sums = _mm512_loadu_ps(space.output + r * task.head_dim + d) * _mm512_set1_ps(factor[r]);
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(out + d), reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(sums)));
    }
  }
}

std::int64_t attention_workspace(std::int64_t length, std::int64_t head_dim) {
  const std::int64_t keys = padded(length);
  return 2 * aligned(keys * head_dim * 2) + aligned(kRows * keys * 4) + aligned(kRows * keys * 2) +
         aligned(kRows * head_dim * 4);
}

void attention_bf16(const AttentionTask& task) {
  const std::int64_t keys = padded(task.length);
  const Workspace space = split(task.workspace, keys, task.head_dim);
  pack(task, keys, space);
  for (std::int64_t head = 0; head < task.heads; ++head)
    for (std::int64_t row = 0; row < task.length; row += kRows)
      attend(task, head, row, task.length - row < kRows ? task.length - row : kRows, keys, space);
}

}  // namespace

void attention_product_pairs(const PairProduct& product) {
  std::int64_t column = 0;
  for (; column + 4 * kWidth <= product.columns; column += 4 * kWidth) multiply_columns<4>(product, column);
  for (; column < product.columns; column += kWidth) multiply_columns<1>(product, column);
}

void (*const attention_entry)(const AttentionTask& task) = attention_bf16;
std::int64_t (*const attention_workspace_entry)(std::int64_t length, std::int64_t head_dim) = attention_workspace;

}  // namespace layerpress::kernels::cpu::LAYERPRESS_ISA
