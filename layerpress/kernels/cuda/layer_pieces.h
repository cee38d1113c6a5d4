#pragma once

#include <cstdint>

#include "layerpress/kernels/cuda/number.h"

// Includes neither CUDA's nor ATen's headers; see column_block.h.
namespace layerpress::kernels::cuda {

/// y = x / sqrt(mean(x²) + epsilon) * (weight + offset), row by row; kernels/layers/transformer.h says where results are
/// rounded.
struct NormTask {
  const void* x = nullptr;  ///< [rows, size]
  const void* weight = nullptr;
  void* y = nullptr;
  std::int64_t rows = 0;
  std::int64_t size = 0;
  float epsilon = 0;
  float offset = 0;
  bool rounded_once = false;
  Number number = Number::kBf16;         ///< type of x and y
  Number weight_number = Number::kBf16;  ///< type of x, or fp32
};

/// y = silu(a) * b, both rounded.
struct GateTask {
  const void* a = nullptr;
  const void* b = nullptr;
  void* y = nullptr;
  std::int64_t count = 0;
  Number number = Number::kBf16;
};

/// Rotates 2 * pairs features of each head, from `offset` on, and copies the others.
struct RotaryTask {
  const void* x = nullptr;  ///< [tokens, heads * head_dim]
  void* y = nullptr;
  const float* cosine = nullptr;            ///< [positions, pairs]
  const float* sine = nullptr;              ///< [positions, pairs]
  const std::int64_t* positions = nullptr;  ///< [tokens]
  std::int64_t tokens = 0;
  std::int64_t heads = 0;
  std::int64_t head_dim = 0;
  std::int64_t offset = 0;
  std::int64_t pairs = 0;
  bool interleaved = false;
  Number number = Number::kBf16;
};

/// Queue the work on `stream`, a cudaStream_t of the current device. Return null, or CUDA's error message.
const char* launch_rms_norm(const NormTask& task, void* stream);
const char* launch_gate(const GateTask& task, void* stream);
const char* launch_rotary(const RotaryTask& task, void* stream);

}  // namespace layerpress::kernels::cuda
