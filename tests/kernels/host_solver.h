#pragma once

#include <algorithm>
#include <vector>

#include "layerpress/kernels/cuda/warp_rows.h"
#include "tests/kernels/host_warp.h"

namespace layerpress::kernels::test {

// The lines that a device runs for a block of columns, on the host.

inline void solve_problem_on_host(const cuda::ColumnBlockTask& task) {
  std::vector<float> feedback(static_cast<std::size_t>(task.columns * cuda::kMaximumBlock), 0.0f);
  for (std::int32_t i = 0; i < task.columns; ++i)
    std::copy_n(task.feedback + i * task.feedback_stride, task.columns, feedback.data() + i * cuda::kMaximumBlock);
  const auto rows = [&](const auto& levels) {
    HostWarp<cuda::Lane> warp;
    for (std::int64_t row = 0; row < task.rows; ++row) cuda::solve_row(warp, task, row, levels, feedback.data());
  };
  with_levels<cuda::LaneOperations>(task.element, rows);
}

inline void solve_on_host(const cuda::ColumnBlockTask& task) {
  for (std::int32_t problem = 0; problem < task.problems; ++problem)
    solve_problem_on_host(cuda::of_problem(task, problem));
}

}  // namespace layerpress::kernels::test
