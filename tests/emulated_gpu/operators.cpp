// libtorch's operators on the device: those of the CPU, on the same bytes.
#include <ATen/ATen.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/library.h>

#include <algorithm>
#include <limits>
#include <string>

#include "tests/emulated_gpu/host_form.h"
#include "tests/emulated_gpu/late_copies.h"

namespace layerpress::emulated_gpu {
namespace {

/// Operators that libtorch for CUDA lets read tensors of the host, too.
bool may_mix_devices(const std::string& name) {
  return name == "aten::copy_" || name == "aten::index" || name == "aten::index_put_" ||
         name == "aten::_index_put_impl_";
}

void run_on_host(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  finish_earlier();
  const at::AutoDispatchBelowADInplaceOrView below;
  const std::size_t count = op.schema().arguments().size(), first = stack->size() - count;
  HostForm form;
  for (std::size_t i = first; i < stack->size(); ++i) (*stack)[i] = form.argument((*stack)[i]);
  TORCH_CHECK(!form.mixes_devices() || may_mix_devices(op.schema().name()), op.schema().name(),
              ": expected all tensors to be on the same device");
  op.callBoxed(stack);
  form.adopt_changes();
  for (std::size_t i = stack->size() - op.schema().returns().size(); i < stack->size(); ++i)
    (*stack)[i] = form.result((*stack)[i]);
}

void copy_now(const at::Tensor& target, const at::Tensor& source) {
  HostForm form;
  form.argument(target).copy_(form.argument(source));
}

/// A copy between the device and pinned memory may happen later.
at::Tensor& copy(at::Tensor& target, const at::Tensor& source, bool non_blocking) {
  const at::AutoDispatchBelowADInplaceOrView below;
  const at::Tensor& on_host = target.is_cuda() ? source : target;
  if (!non_blocking || !on_host.is_cpu() || !on_host.is_pinned()) {
    finish_earlier();
    copy_now(target, source);
    return target;
  }
  LateCopies::instance().queue(own_stream(), [target, source] {
    const at::AutoDispatchBelowADInplaceOrView below_now;
    copy_now(target, source);
  });
  return target;
}

void record_stream(at::Tensor&, c10::Stream) {}  // copies that wait hold their tensors

at::Tensor& add_product_in(const at::Tensor& sums, const at::Tensor& a, const at::Tensor& b, at::ScalarType dtype,
                           const at::Scalar& beta, const at::Scalar& alpha, at::Tensor& out) {
  finish_earlier();
  HostForm form;
  TORCH_CHECK(a.scalar_type() == b.scalar_type() && a.is_cuda() && b.is_cuda(), "addmm: dtypes or devices differ");
  TORCH_CHECK(a.scalar_type() != at::kFloat && dtype == at::kFloat && out.is_same(sums),
              "addmm: sums in fp32 of halves, in place");
  form.argument(out).addmm_(form.argument(a).to(dtype), form.argument(b).to(dtype), beta, alpha);
  return out;
}

/// What libtorch for CUDA makes of a convolution with a group for each channel.
at::Tensor depthwise(const at::Tensor& input, const at::Tensor& weight, at::IntArrayRef,
                     const std::optional<at::Tensor>& bias, at::IntArrayRef stride, at::IntArrayRef padding,
                     at::IntArrayRef dilation) {
  finish_earlier();
  const at::AutoDispatchBelowADInplaceOrView below;
  HostForm form;
  const at::Tensor x = form.argument(input), w = form.argument(weight);
  const std::optional<at::Tensor> b = bias ? std::optional(form.argument(*bias)) : std::nullopt;
  TORCH_CHECK(!form.mixes_devices(), "_conv_depthwise2d: expected all tensors to be on the same device");
  return form.result(at::conv2d(x, w, b, stride, padding, dilation, w.size(0)));
}

struct Mask {
  bool causal;
  std::optional<std::int64_t> before, behind;

  at::Tensor hidden(std::int64_t length) const {
    const at::Tensor all = at::ones({length, length}, at::kBool);
    at::Tensor mask = at::zeros({length, length}, at::kBool);
    if (causal) mask.logical_or_(all.triu(1));
    if (before) mask.logical_or_(all.tril(-*before - 1));
    if (behind) mask.logical_or_(all.triu(*behind + 1));
    return mask;
  }
};

/// Heads first, in fp32; as many heads as the queries have.
at::Tensor heads_of(const at::Tensor& x, std::int64_t begin, std::int64_t end, std::int64_t heads) {
  const at::Tensor wide = x.slice(0, begin, end).to(at::kFloat).transpose(0, 1);
  return wide.repeat_interleave(heads / x.size(1), 0);
}

/// _flash_attention_forward; boxed, because its schema grows from release to release.
void flash_attention(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  finish_earlier();
  const at::AutoDispatchBelowADInplaceOrView below;
  const std::size_t first = stack->size() - op.schema().arguments().size();
  const auto given = [&](std::size_t i) -> const c10::IValue& { return (*stack)[first + i]; };
  HostForm form;
  const auto tensor = [&](std::size_t i) { return form.argument(given(i).toTensor()); };
  const at::Tensor q = tensor(0), k = tensor(1), v = tensor(2), starts = tensor(3);
  TORCH_CHECK(!form.mixes_devices() && q.scalar_type() != at::kFloat, "flash attention: halves on one device");
  const Mask mask{given(8).toBool(), given(11).toOptional<std::int64_t>(), given(12).toOptional<std::int64_t>()};
  at::Tensor mixed = at::zeros_like(q);
  for (std::int64_t s = 0; s + 1 < starts.numel(); ++s) {
    const auto begin = starts[s].item<std::int64_t>(), end = starts[s + 1].item<std::int64_t>();
    const auto heads = [&](const at::Tensor& x) { return heads_of(x, begin, end, q.size(1)); };
    const at::Tensor scores = at::bmm(heads(q), heads(k).transpose(1, 2)).mul_(given(10).toDouble());
    scores.masked_fill_(mask.hidden(end - begin), -std::numeric_limits<float>::infinity());
    mixed.slice(0, begin, end).copy_(at::bmm(scores.softmax(-1), heads(v)).transpose(0, 1));
  }
  stack->resize(first);
  stack->insert(stack->end(), {form.result(mixed), at::Tensor(), at::Tensor(), at::Tensor(), at::Tensor()});
}

TORCH_LIBRARY_IMPL(_, CUDA, library) { library.fallback(torch::CppFunction::makeFromBoxedFunction<&run_on_host>()); }

TORCH_LIBRARY_IMPL(aten, CUDA, library) {
  library.impl("copy_", copy);
  library.impl("record_stream", record_stream);
  library.impl("addmm.dtype_out", add_product_in);
  library.impl("_conv_depthwise2d", depthwise);
  library.impl("_flash_attention_forward", torch::CppFunction::makeFromBoxedFunction<&flash_attention>());
}

}  // namespace
}  // namespace layerpress::emulated_gpu
