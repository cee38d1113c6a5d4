#include "layerpress/kernels/cuda/launch.h"
#include "layerpress/kernels/cuda/layer_lanes.h"
#include "layerpress/kernels/cuda/layer_pieces.h"

namespace layerpress::kernels::cuda {
namespace {

/// A warp per row.
template <std::int32_t kCount, typename T, typename W>
__global__ void __launch_bounds__(kThreads) rms_norm(const NormTask task) {
  DeviceWarp<NormLane> warp;
  warp.index = threadIdx.x % kWarp;
  for (std::int64_t row = own_thread() / kWarp; row < task.rows; row += all_threads() / kWarp)
    norm_row<kCount>(warp, task, static_cast<const T*>(task.x) + row * task.size, static_cast<const W*>(task.weight),
                     static_cast<T*>(task.y) + row * task.size);
}

template <std::int32_t kCount, typename T>
__global__ void __launch_bounds__(kThreads) gate(const GateTask task) {
  const auto* a = static_cast<const Run<T, kCount>*>(task.a);
  const auto* b = static_cast<const Run<T, kCount>*>(task.b);
  for (std::int64_t r = own_thread(); r < task.count / kCount; r += all_threads()) {
    Run<T, kCount> own = a[r];
    const Run<T, kCount> other = b[r];
#pragma unroll
    for (std::int32_t i = 0; i < kCount; ++i) own.values[i] = gated(own.values[i], other.values[i]);
    static_cast<Run<T, kCount>*>(task.y)[r] = own;
  }
}

/// A block per token.
template <typename T>
__global__ void __launch_bounds__(kThreads) rotary(const RotaryTask task) {
  const auto features = static_cast<std::int32_t>(task.heads * task.head_dim);
  for (std::int64_t token = blockIdx.x; token < task.tokens; token += gridDim.x)
    for (auto i = static_cast<std::int32_t>(threadIdx.x); i < features; i += kThreads)
      static_cast<T*>(task.y)[token * features + i] = rotated<T>(task, token, i);
}

/// Whether 16-byte accesses are aligned.
template <typename... Pointers>
bool in_runs(std::int64_t bytes, Pointers... pointers) {
  return bytes % 16 == 0 && ((reinterpret_cast<std::uintptr_t>(pointers) % 16 == 0) && ...);
}

template <typename T, typename W>
void launch_norm(const NormTask& task, cudaStream_t stream) {
  constexpr std::int32_t kCount = 16 / sizeof(T);
  const unsigned blocks = blocks_for(task.rows * kWarp);
  if (in_runs(task.size * static_cast<std::int64_t>(sizeof(T)), task.x, task.y))
    rms_norm<kCount, T, W><<<blocks, kThreads, 0, stream>>>(task);
  else
    rms_norm<1, T, W><<<blocks, kThreads, 0, stream>>>(task);
}

template <typename T>
void launch_gate(const GateTask& task, cudaStream_t stream) {
  constexpr std::int32_t kCount = 16 / sizeof(T);
  if (in_runs(task.count * static_cast<std::int64_t>(sizeof(T)), task.a, task.b, task.y))
    gate<kCount, T><<<blocks_for(task.count / kCount), kThreads, 0, stream>>>(task);
  else
    gate<1, T><<<blocks_for(task.count), kThreads, 0, stream>>>(task);
}

template <typename T>
void launch_rotary(const RotaryTask& task, cudaStream_t stream) {
  rotary<T><<<blocks_for(task.tokens * kThreads), kThreads, 0, stream>>>(task);
}

}  // namespace

const char* launch_rms_norm(const NormTask& task, void* stream) {
  if (task.rows == 0) return nullptr;
  const auto on = static_cast<cudaStream_t>(stream);
  return with_number(task.number, [&](auto number) {
    using T = decltype(number);
    if (task.weight_number == Number::kFloat)
      launch_norm<T, float>(task, on);
    else
      launch_norm<T, T>(task, on);
  });
}

const char* launch_gate(const GateTask& task, void* stream) {
  if (task.count == 0) return nullptr;
  return with_number(task.number,
                     [&](auto number) { launch_gate<decltype(number)>(task, static_cast<cudaStream_t>(stream)); });
}

const char* launch_rotary(const RotaryTask& task, void* stream) {
  if (task.tokens == 0) return nullptr;
  return with_number(task.number,
                     [&](auto number) { launch_rotary<decltype(number)>(task, static_cast<cudaStream_t>(stream)); });
}

}  // namespace layerpress::kernels::cuda
