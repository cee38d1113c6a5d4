#pragma once

#include <cstdint>

#include "layerpress/kernels/cuda/column_block.h"
#include "layerpress/kernels/cuda/lanes.h"
#include "layerpress/kernels/cuda/number.h"

namespace layerpress::kernels::cuda {

/// kernels::RangeRule's two answers in one byte, for which the kernel has registers.
enum class RangeKind : std::uint8_t { kAsymmetric, kSymmetric, kSigned };

/// search_scales (kernels/scales/scale_search.h) for blocks of one row. All pointers are to memory of one device.
struct ScaleSearchTask {
  const void* weight = nullptr;  ///< [rows, columns]
  Number number = Number::kBf16;
  std::int64_t rows = 0;
  std::int64_t columns = 0;
  std::int64_t block_columns = 0;
  const float* importance = nullptr;  ///< [columns], or null
  const float* shrink = nullptr;      ///< [candidates]
  std::int32_t candidates = 0;
  float exponent = 2;
  float expand = 1;  ///< widens ranges before they are shrunk
  ElementType element;
  RangeKind kind = RangeKind::kSymmetric;
  ScaleFormat stored;                 ///< the stored form of scales
  float* scales = nullptr;            ///< [rows, blocks_across()]
  float* zero_points = nullptr;       ///< the same; null for symmetric codes
  std::uint8_t* improving = nullptr;  ///< [candidates], becomes 1 where one was better than all before; or null

  LAYERPRESS_EVERYWHERE std::int64_t blocks_across() const { return (columns + block_columns - 1) / block_columns; }
};

/// Queues the search on `stream`, a cudaStream_t of the current device. Returns null, or CUDA's error message.
const char* launch_scale_search(const ScaleSearchTask& task, void* stream);

}  // namespace layerpress::kernels::cuda
