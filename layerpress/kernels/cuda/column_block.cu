#include "layerpress/kernels/cuda/column_block.h"
#include "layerpress/kernels/cuda/launch.h"
#include "layerpress/kernels/cuda/warp_rows.h"

namespace layerpress::kernels::cuda {
namespace {

constexpr std::int32_t kResident = 3;  // blocks per multiprocessor, limited by shared memory

/// A warp per row. The block's part of the feedback matrix, which all rows of a problem read, is in shared memory.
template <typename Levels>
__global__ void __launch_bounds__(kThreads, kResident) column_block(const ColumnBlockTask tasks, const Levels levels) {
  extern __shared__ float feedback[];  // [columns, kMaximumBlock]
  const ColumnBlockTask task = of_problem(tasks, blockIdx.y);
  for (std::int32_t i = threadIdx.x; i < task.columns * kMaximumBlock; i += kThreads) {
    const std::int32_t row = i / kMaximumBlock, column = i % kMaximumBlock;
    feedback[i] = column < task.columns ? task.feedback[row * task.feedback_stride + column] : 0.0f;
  }
  __syncthreads();
  DeviceWarp<Lane> warp;
  warp.index = threadIdx.x % kWarp;
  for (std::int64_t row = own_thread() / kWarp; row < task.rows; row += all_threads() / kWarp)
    solve_row(warp, task, row, levels, feedback);
}

template <typename Levels>
cudaError_t launch(const ColumnBlockTask& task, const Levels& levels, cudaStream_t stream) {
  const std::size_t shared = sizeof(float) * static_cast<std::size_t>(task.columns) * kMaximumBlock;
  // A kernel must request more than 48 KiB explicitly.
  const cudaError_t allowed = cudaFuncSetAttribute(column_block<Levels>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                                   static_cast<int>(sizeof(float) * kMaximumBlock * kMaximumBlock));
  if (allowed != cudaSuccess) return allowed;
  const dim3 grid(blocks_for(task.rows * kWarp), static_cast<unsigned>(task.problems));
  column_block<<<grid, kThreads, shared, stream>>>(task, levels);
  return cudaGetLastError();
}

}  // namespace

const char* launch_column_block(const ColumnBlockTask& task, void* stream) {
  if (task.rows == 0 || task.columns == 0) return nullptr;
  const auto on = static_cast<cudaStream_t>(stream);
  const cudaError_t error =
      with_levels<LaneOperations>(task.element, [&](const auto& levels) { return launch(task, levels, on); });
  return error == cudaSuccess ? nullptr : cudaGetErrorString(error);
}

}  // namespace layerpress::kernels::cuda
