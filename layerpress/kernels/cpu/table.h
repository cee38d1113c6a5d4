#pragma once

#include <cstdint>

#include "layerpress/kernels/numbers/number_formats.h"

// The vector kernels that are compiled once per instruction set. Files of this folder include neither ATen nor heavy
// standard headers: an inline function of those, compiled for AVX-512, could be linked into the whole program.
namespace layerpress::kernels::cpu {

/// bfloat16 bits.
using Bits16 = std::uint16_t;

/// The stored type of values; all kernels compute in fp32.
enum class ValueType { kBFloat16, kHalf, kFloat };

/// Some rows of a matrix.
struct StoredRows {
  const void* values = nullptr;
  ValueType type = ValueType::kBFloat16;
  std::int64_t count = 0;
  std::int64_t stride = 0;  ///< in elements
};

/// Attention of one key/value head over one sample. Row strides count elements.
struct AttentionTask {
  ValueType type = ValueType::kBFloat16;
  const void* q = nullptr;  ///< first query head of the group, [length, query_stride]
  const void* k = nullptr;
  const void* v = nullptr;
  void* output = nullptr;  ///< [length, output_stride]
  std::int64_t query_stride = 0;
  std::int64_t key_stride = 0;
  std::int64_t value_stride = 0;
  std::int64_t output_stride = 0;
  std::int64_t length = 0;
  std::int64_t keys = 0;
  std::int64_t heads = 0;  ///< query heads that share this key/value head, one after the other in q
  std::int64_t head_dim = 0;
  std::int64_t value_dim = 0;
  bool causal = true;       ///< queries see the keys up to their own place; as many keys as queries then
  std::int64_t window = 0;  ///< 0: no window
  float scale = 1;
  float soft_cap = 0;         ///< 0: none
  void* workspace = nullptr;  ///< attention_workspace() bytes, 64-byte aligned
};

/// The number of rows that are processed together in the GPTQ recursion. A tile holds them transposed: [columns,
/// kColumnTile].
constexpr std::int64_t kColumnTile = 32;
constexpr std::int64_t kMaximumBlock = 128;

/// Consecutive columns of a tile, and what they feed back to the columns of a block behind them.
struct ColumnFeedback {
  const float* residual = nullptr;  ///< tile [count]
  std::int64_t count = 0;           ///< kColumnDepth of them stay in the first-level cache
  const float* factors = nullptr;   ///< [count, stride]
  std::int64_t stride = 0;
  std::int64_t columns = 0;  ///< of the block
};
constexpr std::int64_t kColumnDepth = 256;

/// One block of columns of the GPTQ recursion over one tile of rows; see kernels/solver/gptq.h. Columns are counted in the
/// order of quantization, except those of codes.
struct ColumnBlockTask {
  std::int64_t begin = 0;  ///< first column of the block
  std::int64_t end = 0;    ///< at most begin + kMaximumBlock
  std::int64_t rows = 0;   ///< rows of the tile that count for the loss, at most kColumnTile
  /// Tile [end]. In: original - dequantized for columns before the block, the originals for the block. Out: original -
  /// dequantized.
  float* residual = nullptr;
  std::int8_t* codes = nullptr;  ///< tile [columns of the weight], out: row order[j] has the codes of column j
  /// [end - begin, feedback_stride]: row i has the factors of the residual of column begin + i for the block's columns.
  const float* feedback = nullptr;
  std::int64_t feedback_stride = 0;
  const float* pivots = nullptr;                  ///< [end]: weight of each column's squared error in the loss
  const float* scales = nullptr;                  ///< [groups, kColumnTile]
  const float* zero_points = nullptr;             ///< [groups, kColumnTile] or null
  const std::int32_t* group_of_column = nullptr;  ///< [end]
  const std::int64_t* order = nullptr;            ///< [end]
  ElementType element;
  bool keeps_zeros = false;  ///< originals that are 0 get the code of 0
};

/// The scales of a row: one for each `group` columns, and one for fewer at its end.
struct RowScales {
  std::int64_t columns = 0, group = 0;
  const float* scales = nullptr;
  const float* zero_points = nullptr;  ///< null: all are 0
};

/// Candidate scales for consecutive weights: adds sum(importance * |dequantize(quantize(w)) - w|^exponent) for each.
struct ScaleErrorTask {
  const float* weights = nullptr;
  const float* importance = nullptr;  ///< per weight, or null for 1
  std::int64_t count = 0;
  const float* scales = nullptr;       ///< [candidates]
  const float* zero_points = nullptr;  ///< [candidates] or null
  std::int64_t candidates = 0;
  float exponent = 2;
  ElementType element;
  float* errors = nullptr;  ///< [candidates], added to
};

/// Consecutive runs of values, each quantized and dequantized with a scale of its own.
struct RoundingTask {
  const float* x = nullptr;  ///< [runs, run]
  std::int64_t runs = 0;
  std::int64_t run = 0;
  const float* scales = nullptr;       ///< [runs]
  const float* zero_points = nullptr;  ///< [runs] or null
  ElementType element;
  ValueType type = ValueType::kBFloat16;  ///< of y
  void* y = nullptr;                      ///< [runs, run]
};

/// gram[rows, columns] += leftᵀ right over pairs of tokens, for two packed panels.
struct GramTile {
  const std::uint32_t* left = nullptr;   ///< [pairs, kGramPanel], see Table::gram_pack
  const std::uint32_t* right = nullptr;  ///< [pairs, kGramPanel]
  std::int64_t pairs = 0;
  float* gram = nullptr;
  std::int64_t stride = 0;
  std::int64_t rows = 0;     ///< columns of the left panel that exist
  std::int64_t columns = 0;  ///< columns of the right panel that exist
  bool on_diagonal = false;  ///< left and right are the same panel of a triangle; elements below may be left out
};
constexpr std::int64_t kGramPanel = 48;

/// sums[rows, kProductPanel] = or += x times a packed panel of a weight.
struct ProductTile {
  const Bits16* x = nullptr;  ///< [rows, stride]
  std::int64_t stride = 0;
  std::int64_t rows = 0;
  std::int64_t pairs = 0;                ///< pairs of features
  const std::uint32_t* panel = nullptr;  ///< [pairs, kProductPanel], see Table::product_pack; 64-byte aligned
  float* sums = nullptr;                 ///< 64-byte aligned
  bool adds = false;
};

/// sums[rows, columns] = or += leftᵀ right in fp32, for panels of fp32 values. Rows come in groups of Table::wide_rows
/// that lie beside each other, columns in blocks of kWideColumns, of which the last may be read to its end.
struct WideTile {
  const float* left = nullptr;
  std::int64_t left_stride = 0;  ///< from one step of the depth to the next
  std::int64_t left_group = 0;   ///< from one group of rows to the next
  const float* right = nullptr;
  std::int64_t right_stride = 0;
  std::int64_t right_block = 0;  ///< from one block of columns to the next
  std::int64_t depth = 0;
  float* sums = nullptr;
  std::int64_t stride = 0;
  std::int64_t rows = 0;
  std::int64_t columns = 0;
  bool adds = false;
  bool on_diagonal = false;  ///< the tile crosses the diagonal of a triangle; sums below it are optional
};
constexpr std::int64_t kWideColumns = 16;

constexpr std::int64_t kProductPanel = 32;
constexpr std::int64_t kProductHalf = 16;

/// The results of a tile's sums [rows, kProductPanel].
struct ProductResult {
  const float* sums = nullptr;  ///< 64-byte aligned
  std::int64_t rows = 0;
  std::int64_t columns = 0;               ///< of y
  const void* bias = nullptr;             ///< [columns] or null
  ValueType type = ValueType::kBFloat16;  ///< of bias and y
  void* y = nullptr;                      ///< [rows, stride]
  std::int64_t stride = 0;
};

/// The kernels for values of one type, bfloat16 or fp32.
template <typename T>
struct Elementwise {
  void (*rms_norm)(const T* x, const T* weight, T* y, std::int64_t rows, std::int64_t size, float eps);
  void (*silu_multiply)(const T* a, const T* b, T* y, std::int64_t count);
  /// One token with `heads` heads of head_dim features; the first 2 * pairs features of each are rotated, the others
  /// copied.
  void (*rotary)(const T* x, const float* cosine, const float* sine, T* y, std::int64_t heads, std::int64_t head_dim,
                 std::int64_t pairs);
  /// Sums of (a - b)^2 and of a^2.
  void (*squared_difference)(const T* a, const T* b, std::int64_t count, double* difference, double* square);
};

/// The kernels of one instruction set. A null entry: not offered, the caller has another way.
struct Table {
  const char* name;  ///< one of the values of LAYERPRESS_CPU
  Elementwise<Bits16> bf16;
  Elementwise<float> f32;
  void (*add_scaled_bf16)(const Bits16* x, float factor, Bits16* y, std::int64_t count);  // y += x factor
  void (*widen_bf16)(const Bits16* x, float* y, std::int64_t count);
  void (*minimum_maximum)(const float* x, std::int64_t count, float* minimum, float* maximum);
  void (*scale_errors)(const ScaleErrorTask& task);
  /// Extends the ranges of `columns` columns by some rows. Returns whether all values are numbers.
  bool (*channel_ranges)(const StoredRows& rows, std::int64_t columns, float* minima, float* maxima);
  /// Smallest and largest value of each of `runs` consecutive runs, or 0.
  void (*run_ranges)(const float* x, std::int64_t runs, std::int64_t run, float* minima, float* maxima);
  /// NaN stays NaN.
  void (*round_values)(const RoundingTask& task);
  void (*quantize)(const float* x, const RowScales& row, const ElementType& element, std::int8_t* codes);
  /// (code - zero_point) * scale.
  void (*dequantize_bf16)(const std::int8_t* codes, const RowScales& row, const ElementType& element, Bits16* values);
  void (*dequantize_f32)(const std::int8_t* codes, const RowScales& row, const ElementType& element, float* values);
  /// y = x factors, element by element, rounded to x's type; y's type is the same or fp32.
  void (*scale_columns)(const void* x, ValueType x_type, const float* factors, std::int64_t count, void* y,
                        ValueType y_type);
  /// Transposes rows [rows, columns], at most kColumnTile of them, into a tile, whose lanes beyond the last row repeat
  /// it. Column j becomes row place[j] of the tile.
  void (*column_tile_load)(const float* weights, std::int64_t rows, std::int64_t columns, const std::int64_t* place,
                           float* tile);
  /// Transposes a tile of codes into rows [rows, columns].
  void (*column_tile_store)(const std::int8_t* tile, std::int64_t rows, std::int64_t columns, std::int8_t* codes);
  /// Adds the feedback of earlier columns to running [columns, kColumnTile], 64-byte aligned. The sum of a column runs over the earlier
  /// ones in their order, whatever columns are added to beside it.
  void (*column_block_add)(const ColumnFeedback& earlier, float* running);
  /// Quantizes the block from `running`, which is modified; writes residuals and codes. Returns the sum of
  /// pivot * (running - dequantized)^2, where `running` is each column with the feedback of all earlier ones.
  double (*column_block_end)(const ColumnBlockTask& task, float* running);
  /// The same sum for each row, loss [kColumnTile], without side effects.
  void (*column_block_try)(const ColumnBlockTask& task, const float* running, float* loss);
  /// For bf16 and causal attention without a cap, where value_dim is head_dim and a multiple of 16.
  void (*attention_bf16)(const AttentionTask& task);
  std::int64_t (*attention_workspace)(std::int64_t length, std::int64_t head_dim);
  void (*attention_wide)(const AttentionTask& task);
  /// In bytes, for the task's numbers.
  std::int64_t (*attention_wide_workspace)(const AttentionTask& task);
  /// Packs `columns` (at most kGramPanel) columns of x [tokens, stride] into panel [(tokens + 1) / 2, kGramPanel].
  void (*gram_pack)(const Bits16* x, std::int64_t tokens, std::int64_t stride, std::int64_t columns,
                    std::uint32_t* panel);
  /// The same for a - b, both [tokens, stride], rounded to bf16.
  void (*gram_pack_difference)(const Bits16* a, const Bits16* b, std::int64_t tokens, std::int64_t stride,
                               std::int64_t columns, std::uint32_t* panel);
  void (*gram_tile)(const GramTile& tile);
  /// Rows that wide_tile() takes at once.
  std::int64_t wide_rows;
  void (*wide_tile)(const WideTile& tile);
  /// Transposes `width` rows of `depth` values each into panel [depth, width]; zero where there is no row.
  void (*wide_pack_rows)(const StoredRows& rows, std::int64_t depth, std::int64_t width, float* panel);
  /// Widens `columns` (at most kGramPanel) columns of some rows into panel [rows, kGramPanel], zero behind them.
  void (*wide_pack_columns)(const StoredRows& rows, std::int64_t columns, float* panel);
  /// The same of minuend - rows, of one type.
  void (*wide_pack_difference)(const StoredRows& minuend, const StoredRows& rows, std::int64_t columns, float* panel);
  /// Packs pairs of features of up to kProductHalf rows of a weight [rows, stride] into one half of a panel [pairs,
  /// kProductPanel], beginning at `panel`; missing rows are zero.
  void (*product_pack)(const Bits16* weight, std::int64_t stride, std::int64_t rows, std::int64_t pairs,
                       std::uint32_t* panel);
  void (*product_tile)(const ProductTile& tile);
  /// y = sums + bias, rounded.
  void (*product_round)(const ProductResult& result);
  /// y = silu(first half of sums) * second half, both rounded before: as silu_multiply.
  void (*product_gate)(const ProductResult& result);
};

/// The table of the best instruction set that both the machine and the build support. LAYERPRESS_CPU (baseline, avx2,
/// avx512, avx512_bf16, amx) in the environment selects a lower one.
const Table& table();

// One per compiled instruction set; defined in isa_table.cpp.
namespace baseline {
const Table& isa_table();
}
namespace avx2 {
const Table& isa_table();
}
namespace avx512 {
const Table& isa_table();
}
namespace avx512_bf16 {
const Table& isa_table();
}
namespace amx {
const Table& isa_table();
}

}  // namespace layerpress::kernels::cpu
