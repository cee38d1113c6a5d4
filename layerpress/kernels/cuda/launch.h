#pragma once

#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include "layerpress/kernels/cuda/conversions.h"

// How kernels are spread over a device. For .cu files only.
namespace layerpress::kernels::cuda {

constexpr std::int32_t kThreads = 256;
constexpr std::int64_t kMostBlocks = 1 << 16;  // what is beyond them takes turns

inline unsigned blocks_for(std::int64_t threads) {
  const std::int64_t blocks = (threads + kThreads - 1) / kThreads;
  return static_cast<unsigned>(blocks < kMostBlocks ? blocks : kMostBlocks);
}

/// Of the whole grid.
__device__ __forceinline__ std::int64_t own_thread() {
  return static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
}
__device__ __forceinline__ std::int64_t all_threads() { return static_cast<std::int64_t>(gridDim.x) * kThreads; }

/// What the last launch says is wrong, or null.
inline const char* launch_error() {
  const cudaError_t error = cudaGetLastError();
  return error == cudaSuccess ? nullptr : cudaGetErrorString(error);
}

/// Calls function(T()) with the type of a number, which launches something.
template <typename Function>
const char* with_number(Number number, Function&& function) {
  if (number == Number::kBf16)
    function(Bf16());
  else if (number == Number::kHalf)
    function(__half());
  else
    function(float());
  return launch_error();
}

}  // namespace layerpress::kernels::cuda
