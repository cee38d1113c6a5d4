#pragma once

#include <ATen/Parallel.h>

#include <algorithm>
#include <atomic>
#include <cstdint>

namespace layerpress::kernels {

/// Runs worker(next) on at most as many threads as there are tasks. next() gives a worker its next
/// task, and numbers from `tasks` on if none is left. A slower or busy core thus takes fewer tasks, while equal shares
/// would make the others wait for it. The result must not depend on which thread runs a task.
template <typename Worker>
void share_tasks(std::int64_t tasks, Worker&& worker) {
  std::atomic<std::int64_t> taken{0};
  const std::int64_t workers = std::min<std::int64_t>(tasks, at::get_num_threads());
  at::parallel_for(0, workers, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t w = begin; w < end; ++w)
      worker([&taken] { return taken.fetch_add(1, std::memory_order_relaxed); });
  });
}

/// The same for tasks without per-thread state.
template <typename Task>
void for_each_task(std::int64_t tasks, Task&& task) {
  share_tasks(tasks, [&](auto&& next) {
    for (std::int64_t t = next(); t < tasks; t = next()) task(t);
  });
}

}  // namespace layerpress::kernels
