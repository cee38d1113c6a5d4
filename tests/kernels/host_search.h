#pragma once

#include "layerpress/kernels/cuda/search_lanes.h"
#include "tests/kernels/host_warp.h"

namespace layerpress::kernels::test {

/// The lines that a device runs for a search of scales, on the host. T: the type of the task's weight.
template <typename T>
void search_blocks_on_host(const cuda::ScaleSearchTask& task) {
  const std::int64_t across = task.blocks_across();
  with_levels<cuda::LaneOperations>(task.element, [&](const auto& levels) {
    HostWarp<cuda::SearchLane> warp;
    for (std::int64_t i = 0; i < task.rows * across; ++i)
      cuda::search_block<T>(warp, task, i / across, i % across, levels);
  });
}

}  // namespace layerpress::kernels::test
