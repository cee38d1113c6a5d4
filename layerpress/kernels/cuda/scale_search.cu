#include <cuda_runtime.h>

#include "layerpress/kernels/cuda/scale_search.h"
#include "layerpress/kernels/cuda/search_lanes.h"

namespace layerpress::kernels::cuda {
namespace {

constexpr std::int32_t kThreads = 256, kBlocksAtOnce = kThreads / kWarp;
constexpr std::int32_t kResident = 4;  // blocks of a multiprocessor; more would have too few registers

/// A warp per block of one row. What its candidates read of the weight again is in the nearest cache.
template <typename T, typename Levels>
__global__ void __launch_bounds__(kThreads, kResident) scale_search(const ScaleSearchTask task, const Levels levels) {
  DeviceWarp<SearchLane> warp;
  warp.index = threadIdx.x % kWarp;
  const std::int64_t across = (task.columns + task.block_columns - 1) / task.block_columns;
  const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * kBlocksAtOnce;
  for (std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kBlocksAtOnce + threadIdx.x / kWarp;
       i < task.rows * across; i += step)
    search_block<T>(warp, task, i / across, i % across, levels);
}

template <typename T>
void launch(const ScaleSearchTask& task, cudaStream_t stream) {
  constexpr std::int64_t kMostBlocks = 1 << 16;  // what is beyond them takes turns
  const std::int64_t all = task.rows * ((task.columns + task.block_columns - 1) / task.block_columns);
  const std::int64_t blocks = (all + kBlocksAtOnce - 1) / kBlocksAtOnce;
  const auto grid = static_cast<unsigned>(blocks < kMostBlocks ? blocks : kMostBlocks);
  if (task.codebook.fp8)
    scale_search<T><<<grid, kThreads, 0, stream>>>(task, Fp8Levels{});
  else
    scale_search<T><<<grid, kThreads, 0, stream>>>(task, IntegerLevels{task.codebook.minimum, task.codebook.maximum});
}

}  // namespace

const char* launch_scale_search(const ScaleSearchTask& task, void* stream) {
  if (task.rows == 0 || task.columns == 0) return nullptr;
  const auto on = static_cast<cudaStream_t>(stream);
  if (task.number == Number::kBf16)
    launch<Bf16>(task, on);
  else if (task.number == Number::kHalf)
    launch<__half>(task, on);
  else
    launch<float>(task, on);
  const cudaError_t error = cudaGetLastError();
  return error == cudaSuccess ? nullptr : cudaGetErrorString(error);
}

}  // namespace layerpress::kernels::cuda
