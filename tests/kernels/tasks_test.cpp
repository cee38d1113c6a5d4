#include "layerpress/kernels/tasks.h"

#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <atomic>
#include <vector>

namespace layerpress::kernels {
namespace {

TEST(Tasks, EachIsRunOnce) {
  const int threads = at::get_num_threads();
  for (const int used : {1, 2, 5}) {
    at::set_num_threads(used);
    for (const std::int64_t count : {0, 1, 3, 1000}) {
      std::vector<std::atomic<int>> runs(static_cast<std::size_t>(count));
      for_each_task(count, [&](std::int64_t t) { ++runs.at(static_cast<std::size_t>(t)); });
      for (const std::atomic<int>& times : runs) EXPECT_EQ(times, 1);
    }
  }
  at::set_num_threads(threads);
}

TEST(Tasks, InsideOfATaskRunInItsThread) {
  std::atomic<int> runs{0};
  for_each_task(3, [&](std::int64_t) { for_each_task(4, [&](std::int64_t) { ++runs; }); });
  EXPECT_EQ(runs, 12);
}

}  // namespace
}  // namespace layerpress::kernels
