#pragma once

#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include "layerpress/kernels/cuda/conversions.h"

// The distribution of kernels over a device. Only for .cu files.
namespace layerpress::kernels::cuda {

constexpr std::int32_t kThreads = 256;
constexpr std::int64_t kMostBlocks = 1 << 16;  // further work is done by the same blocks in turn

inline unsigned blocks_for(std::int64_t threads) {
  const std::int64_t blocks = (threads + kThreads - 1) / kThreads;
  return static_cast<unsigned>(blocks < kMostBlocks ? blocks : kMostBlocks);
}

/// The index of the thread in the whole grid.
__device__ __forceinline__ std::int64_t own_thread() {
  return static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
}
__device__ __forceinline__ std::int64_t all_threads() { return static_cast<std::int64_t>(gridDim.x) * kThreads; }

/// The error message of the last launch, or null.
inline const char* launch_error() {
  const cudaError_t error = cudaGetLastError();
  return error == cudaSuccess ? nullptr : cudaGetErrorString(error);
}

/// Calls function(T()) with the type of `number`; the function launches a kernel.
template <typename Function>
const char* with_number(Number number, Function&& function) {
  with_type<__half>(number, function);
  return launch_error();
}

}  // namespace layerpress::kernels::cuda
