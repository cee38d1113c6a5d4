#include "layerpress/kernels/cuda/launch.h"
#include "layerpress/kernels/cuda/scale_search.h"
#include "layerpress/kernels/cuda/search_lanes.h"

namespace layerpress::kernels::cuda {
namespace {

constexpr std::int32_t kResident = 4;  // blocks per multiprocessor; more would have too few registers

/// A warp per block of one row. When candidates read the weight again, it is in the L1 cache.
template <typename T, typename Levels>
__global__ void __launch_bounds__(kThreads, kResident) scale_search(const ScaleSearchTask task, const Levels levels) {
  DeviceWarp<SearchLane> warp;
  warp.index = threadIdx.x % kWarp;
  const std::int64_t across = task.blocks_across();
  for (std::int64_t i = own_thread() / kWarp; i < task.rows * across; i += all_threads() / kWarp)
    search_block<T>(warp, task, i / across, i % across, levels);
}

template <typename T>
void launch(const ScaleSearchTask& task, cudaStream_t stream) {
  const unsigned grid = blocks_for(task.rows * task.blocks_across() * kWarp);
  with_levels<LaneOperations>(
      task.element, [&](const auto& levels) { scale_search<T><<<grid, kThreads, 0, stream>>>(task, levels); });
}

}  // namespace

const char* launch_scale_search(const ScaleSearchTask& task, void* stream) {
  if (task.rows == 0 || task.columns == 0) return nullptr;
  return with_number(task.number,
                     [&](auto number) { launch<decltype(number)>(task, static_cast<cudaStream_t>(stream)); });
}

}  // namespace layerpress::kernels::cuda
