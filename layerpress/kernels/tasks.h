#pragma once

#include <ATen/Parallel.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <utility>

namespace layerpress::kernels {

/// Runs worker(next) on as many threads as there are, or tasks; next() gives a worker its next task, and numbers from `tasks`
/// on when none is left. A core that is slower, or busy with something else, takes fewer; in equal shares it would be
/// waited for. Which thread has a task must not matter to the result.
template <typename Worker>
void share_tasks(std::int64_t tasks, Worker&& worker) {
  std::atomic<std::int64_t> taken{0};
  const std::int64_t workers = std::min<std::int64_t>(tasks, at::get_num_threads());
  at::parallel_for(0, workers, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t w = begin; w < end; ++w)
      worker([&taken] { return taken.fetch_add(1, std::memory_order_relaxed); });
  });
}

/// The same for tasks that need nothing of their thread.
template <typename Task>
void for_each_task(std::int64_t tasks, Task&& task) {
  share_tasks(tasks, [&](auto&& next) {
    for (std::int64_t t = next(); t < tasks; t = next()) task(t);
  });
}

}  // namespace layerpress::kernels
