#pragma once

#include <cstdint>

#include "layerpress/kernels/numbers/number_formats.h"

// Neither CUDA's nor ATen's headers: what the kernels take, for callers that are compiled without either.
namespace layerpress::kernels::cuda {

constexpr std::int32_t kMaximumBlock = 128;

/// One block of columns of the GPTQ recursion (kernels/solver/gptq.h) over stacks of rows, one for each of some problems of equal shape,
/// one below the other. Columns are counted from the block's first one, in the order of quantization. All pointers are to memory
/// of one device.
struct ColumnBlockTask {
  std::int32_t problems = 1;
  std::int64_t rows = 0;           ///< rows of each problem
  std::int32_t columns = 0;        ///< at most kMaximumBlock
  const float* running = nullptr;  ///< [rows, columns]: the originals plus the feedback of all columns before the block
  float* residual = nullptr;       ///< [rows, residual_stride]: in, the originals; out, original - dequantized
  std::int64_t residual_stride = 0;
  std::int8_t* codes = nullptr;  ///< [rows, codes_stride], out
  std::int64_t codes_stride = 0;
  /// [columns, feedback_stride]: row i has the factors of column i's residual for later columns; 0 on and below the
  /// diagonal.
  const float* feedback = nullptr;
  std::int64_t feedback_stride = 0;
  std::int64_t feedback_apart = 0;  ///< distance in elements from one problem's to the next one's
  const float* pivots = nullptr;    ///< [columns]: weight of each column's squared error in the loss
  float* scales = nullptr;          ///< [ceil(rows / rows_per_group), groups]
  float* zero_points = nullptr;     ///< the same, or null
  std::int64_t groups = 0;
  std::int64_t rows_per_group = 1;
  const std::int32_t* group_of_column = nullptr;  ///< [columns]
  std::int64_t columns_apart = 0;                 ///< elements between problems
  /// With candidates, the block is one group of columns, and every row has its own scales. The candidates with the
  /// smallest loss are written to `scales` and `zero_points`.
  std::int32_t candidates = 0;
  const float* candidate_scales = nullptr;       ///< [candidates, candidates_apart], from this problem's rows on
  const float* candidate_zero_points = nullptr;  ///< the same, or null
  std::int64_t candidates_apart = 0;
  ElementType element;
  bool keeps_zeros = false;  ///< originals that are 0 get the code of 0
  double* loss = nullptr;    ///< [rows], added to
};

/// Queues the block on `stream`, a cudaStream_t of the current device. Returns null, or CUDA's error message.
const char* launch_column_block(const ColumnBlockTask& task, void* stream);

}  // namespace layerpress::kernels::cuda
