// The device kernels, lane by lane on the host. Every pointer of a task must be the device's.
#include <c10/util/Half.h>

#include <vector>

#include "layerpress/kernels/cuda/layer_lanes.h"
#include "tests/emulated_gpu/device_memory.h"
#include "tests/emulated_gpu/late_copies.h"
#include "tests/kernels/host_search.h"
#include "tests/kernels/host_solver.h"
#include "tests/kernels/host_warp.h"

namespace layerpress::kernels::cuda {

/// What __half is in CUDA.
struct HostHalf {
  c10::Half value;
};
inline float widen(HostHalf half) { return half.value; }
template <>
inline HostHalf narrow<HostHalf>(float value) {
  return {c10::Half(value)};
}

namespace {

using emulated_gpu::HostAccess;

/// Kernels come behind what the stream was given before.
template <typename... Pointers>
std::vector<HostAccess> access_to(Pointers... pointers) {
  emulated_gpu::finish_earlier();
  std::vector<HostAccess> access;
  (access.emplace_back(pointers), ...);
  return access;
}

template <typename T, typename W>
void norm_rows(const NormTask& task) {
  test::HostWarp<NormLane> warp;
  for (std::int64_t row = 0; row < task.rows; ++row)
    norm_row<1>(warp, task, static_cast<const T*>(task.x) + row * task.size, static_cast<const W*>(task.weight),
                static_cast<T*>(task.y) + row * task.size);
}

}  // namespace

const char* launch_column_block(const ColumnBlockTask& task, void*) {
  const auto access =
      access_to(task.running, task.residual, task.codes, task.feedback, task.pivots, task.scales, task.zero_points,
                task.group_of_column, task.candidate_scales, task.candidate_zero_points, task.loss);
  test::solve_on_host(task);
  return nullptr;
}

const char* launch_scale_search(const ScaleSearchTask& task, void*) {
  const auto access =
      access_to(task.weight, task.importance, task.shrink, task.scales, task.zero_points, task.improving);
  with_type<HostHalf>(task.number, [&](auto number) { test::search_blocks_on_host<decltype(number)>(task); });
  return nullptr;
}

const char* launch_rms_norm(const NormTask& task, void*) {
  const auto access = access_to(task.x, task.weight, task.y);
  with_type<HostHalf>(task.number, [&](auto number) {
    using T = decltype(number);
    if (task.weight_number == Number::kFloat)
      norm_rows<T, float>(task);
    else
      norm_rows<T, T>(task);
  });
  return nullptr;
}

const char* launch_gate(const GateTask& task, void*) {
  const auto access = access_to(task.a, task.b, task.y);
  with_type<HostHalf>(task.number, [&](auto number) {
    using T = decltype(number);
    for (std::int64_t i = 0; i < task.count; ++i)
      static_cast<T*>(task.y)[i] = gated(static_cast<const T*>(task.a)[i], static_cast<const T*>(task.b)[i]);
  });
  return nullptr;
}

const char* launch_rotary(const RotaryTask& task, void*) {
  const auto access = access_to(task.x, task.y, task.cosine, task.sine, task.positions);
  const std::int64_t features = task.heads * task.head_dim;
  with_type<HostHalf>(task.number, [&](auto number) {
    using T = decltype(number);
    for (std::int64_t i = 0; i < task.tokens * features; ++i)
      static_cast<T*>(task.y)[i] = rotated<T>(task, i / features, i % features);
  });
  return nullptr;
}

}  // namespace layerpress::kernels::cuda
