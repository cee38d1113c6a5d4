#pragma once

#include <cstdint>

namespace layerpress::kernels::cpu {

/// sums[rows, columns] = left [rows, pairs] right [pairs, columns], of pairs of bf16 values along the reduction. Strides are in elements.
struct PairProduct {
  const std::uint32_t* left = nullptr;
  std::int64_t left_stride = 0;
  const std::uint32_t* right = nullptr;
  std::int64_t right_stride = 0;
  float* sums = nullptr;
  std::int64_t sums_stride = 0;
  std::int64_t rows = 0;
  std::int64_t columns = 0;  ///< a multiple of 16
  std::int64_t pairs = 0;
};

}  // namespace layerpress::kernels::cpu
