// Implements the device functions of the kernels room with the device kernels, on ATen's stream of the tensors' device.
#include <ATen/ATen.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include "layerpress/base/error.h"
#include "layerpress/kernels/cuda/layer_pieces.h"
#include "layerpress/kernels/device_types.h"
#include "layerpress/kernels/layers/device_layers.h"
#include "layerpress/kernels/scales/row_search.h"
#include "layerpress/kernels/solver/block_solver.h"

namespace layerpress::kernels {
namespace {

/// Asked for without CUDA's headers, which not every build has.
void* stream() {
  const c10::impl::VirtualGuardImpl guard(at::kCUDA);
  return guard.getStreamNativeHandle(guard.getStream(guard.getDevice()));
}

void require(const char* error, const char* what) {
  if (error != nullptr) throw InternalError("[kernels.cuda] {}: {}", what, error);
}

void solve_on_device(const cuda::ColumnBlockTask& task) {
  require(cuda::launch_column_block(task, stream()), "a block of columns");
}

void search_on_device(const cuda::ScaleSearchTask& task) {
  require(cuda::launch_scale_search(task, stream()), "a search of scales");
}

}  // namespace

ColumnBlockSolver column_block_solver(at::Device device) { return device.is_cuda() ? solve_on_device : nullptr; }
RowSearcher row_searcher(at::Device device) { return device.is_cuda() ? search_on_device : nullptr; }

std::optional<at::Tensor> rms_norm_on_device(const at::Tensor& input, const at::Tensor& weight, double epsilon,
                                             const NormWeight& how) {
  const auto number = device_number(input.scalar_type()), weight_number = device_number(weight.scalar_type());
  if (!input.is_cuda() || !number || !weight_number) return std::nullopt;
  if (*weight_number != *number && *weight_number != cuda::Number::kFloat) return std::nullopt;
  if (!how.rounded_once && *weight_number != *number) return std::nullopt;  // the result would have another dtype
  const c10::DeviceGuard guard(input.device());
  const at::Tensor x = input.contiguous(), w = weight.contiguous();
  at::Tensor y = at::empty_like(x);
  cuda::NormTask task;
  task.x = x.const_data_ptr();
  task.weight = w.const_data_ptr();
  task.y = y.mutable_data_ptr();
  task.size = w.numel();
  task.rows = x.numel() / task.size;
  task.epsilon = static_cast<float>(epsilon);
  task.offset = static_cast<float>(how.offset);
  task.rounded_once = how.rounded_once;
  task.number = *number;
  task.weight_number = *weight_number;
  require(cuda::launch_rms_norm(task, stream()), "a norm");
  return y;
}

std::optional<at::Tensor> silu_multiply_on_device(const at::Tensor& first, const at::Tensor& second) {
  const auto number = device_number(first.scalar_type());
  if (!first.is_cuda() || !number || second.scalar_type() != first.scalar_type()) return std::nullopt;
  const c10::DeviceGuard guard(first.device());
  const at::Tensor a = first.contiguous(), b = second.contiguous();
  at::Tensor y = at::empty_like(a);
  cuda::GateTask task;
  task.a = a.const_data_ptr();
  task.b = b.const_data_ptr();
  task.y = y.mutable_data_ptr();
  task.count = a.numel();
  task.number = *number;
  require(cuda::launch_gate(task, stream()), "a gated activation");
  return y;
}

std::optional<at::Tensor> rotary_on_device(const at::Tensor& input, const at::Tensor& cosine, const at::Tensor& sine,
                                           const at::Tensor& positions, const RotaryShape& shape) {
  const auto number = device_number(input.scalar_type());
  if (!input.is_cuda() || !number || cosine.scalar_type() != at::kFloat || positions.scalar_type() != at::kLong)
    return std::nullopt;
  const c10::DeviceGuard guard(input.device());
  const at::Tensor x = input.contiguous(), c = cosine.contiguous(), s = sine.contiguous(), p = positions.contiguous();
  at::Tensor y = at::empty_like(x);
  cuda::RotaryTask task;
  task.x = x.const_data_ptr();
  task.y = y.mutable_data_ptr();
  task.cosine = c.const_data_ptr<float>();
  task.sine = s.const_data_ptr<float>();
  task.positions = p.const_data_ptr<std::int64_t>();
  task.tokens = x.size(0);
  task.heads = x.size(1) / shape.head_dim;
  task.head_dim = shape.head_dim;
  task.offset = shape.offset;
  task.pairs = c.size(1);
  task.interleaved = shape.interleaved;
  task.number = *number;
  require(cuda::launch_rotary(task, stream()), "a rotation");
  return y;
}

}  // namespace layerpress::kernels
