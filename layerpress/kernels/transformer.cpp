#include "layerpress/kernels/transformer.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <cstdlib>

#include "layerpress/kernels/cpu/table.h"

namespace layerpress::kernels {
namespace {

using cpu::Bits16;

bool runs_fused(const at::Tensor& x) {
  return x.is_cpu() && (x.scalar_type() == at::kBFloat16 || x.scalar_type() == at::kFloat);
}

const Bits16* bits(const at::Tensor& x) { return static_cast<const Bits16*>(x.const_data_ptr()); }
Bits16* mutable_bits(at::Tensor& x) { return static_cast<Bits16*>(x.data_ptr()); }

/// Rows per thread so that each gets at least about 64k elements.
std::int64_t grain(std::int64_t elements_per_row) { return std::max<std::int64_t>(1, 65536 / elements_per_row); }

/// 64-byte aligned scratch memory.
class Scratch {
 public:
  explicit Scratch(std::int64_t bytes)
      : memory_(std::aligned_alloc(64, static_cast<std::size_t>((bytes + 63) / 64 * 64))) {
    if (memory_ == nullptr) throw std::bad_alloc();
  }
  ~Scratch() { std::free(memory_); }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  void* get() const { return memory_; }

 private:
  void* memory_;
};

}  // namespace

at::Tensor rms_norm(const at::Tensor& input, const at::Tensor& weight, double epsilon) {
  if (!runs_fused(input) || weight.scalar_type() != input.scalar_type())
    return rms_norm_reference(input, weight, epsilon);
  const at::Tensor x = input.contiguous(), w = weight.contiguous();
  at::Tensor y = at::empty_like(x);
  const std::int64_t size = w.numel(), rows = x.numel() / size;
  const auto eps = static_cast<float>(epsilon);
  at::parallel_for(0, rows, grain(size), [&](std::int64_t begin, std::int64_t end) {
    const std::int64_t at = begin * size;
    if (x.scalar_type() == at::kBFloat16)
      cpu::table().rms_norm_bf16(bits(x) + at, bits(w), mutable_bits(y) + at, end - begin, size, eps);
    else
      cpu::table().rms_norm_f32(x.const_data_ptr<float>() + at, w.const_data_ptr<float>(), y.data_ptr<float>() + at,
                                end - begin, size, eps);
  });
  return y;
}

at::Tensor gated_activation(const std::string& function, const at::Tensor& first, const at::Tensor& second) {
  if (function != "silu" || !runs_fused(first)) return gated_activation_reference(function, first, second);
  const at::Tensor a = first.contiguous(), b = second.contiguous();
  at::Tensor y = at::empty_like(a);
  at::parallel_for(0, a.numel(), 65536, [&](std::int64_t begin, std::int64_t end) {
    if (a.scalar_type() == at::kBFloat16)
      cpu::table().silu_multiply_bf16(bits(a) + begin, bits(b) + begin, mutable_bits(y) + begin, end - begin);
    else
      cpu::table().silu_multiply_f32(a.const_data_ptr<float>() + begin, b.const_data_ptr<float>() + begin,
                                     y.data_ptr<float>() + begin, end - begin);
  });
  return y;
}

at::Tensor rotary(const at::Tensor& input, const at::Tensor& cosine, const at::Tensor& sine,
                  const at::Tensor& positions, std::int64_t head_dim) {
  if (!runs_fused(input)) return rotary_reference(input, cosine, sine, positions, head_dim);
  const at::Tensor x = input.contiguous();
  at::Tensor y = at::empty_like(x);
  const std::int64_t features = x.size(1), heads = features / head_dim, pairs = cosine.size(1);
  const float* c = cosine.const_data_ptr<float>();
  const float* s = sine.const_data_ptr<float>();
  const std::int64_t* position = positions.const_data_ptr<std::int64_t>();
  at::parallel_for(0, x.size(0), grain(features), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t token = begin; token < end; ++token) {
      const std::int64_t angle = position[token] * pairs, at = token * features;
      if (x.scalar_type() == at::kBFloat16)
        cpu::table().rotary_bf16(bits(x) + at, c + angle, s + angle, mutable_bits(y) + at, heads, head_dim, pairs);
      else
        cpu::table().rotary_f32(x.const_data_ptr<float>() + at, c + angle, s + angle, y.data_ptr<float>() + at, heads,
                                head_dim, pairs);
    }
  });
  return y;
}

namespace {

bool has_fused_attention(at::ScalarType dtype, const AttentionShape& shape) {
  return dtype == at::kBFloat16 && cpu::table().attention_bf16 != nullptr && shape.head_dim % 16 == 0;
}

}  // namespace

std::uint64_t attention_workspace_bytes(std::int64_t length, const AttentionShape& shape, at::ScalarType dtype,
                                        int threads) {
  if (has_fused_attention(dtype, shape))
    return static_cast<std::uint64_t>(threads * cpu::table().attention_workspace(length, shape.head_dim));
  // Per sample: keys and values spread over the heads, the result, its copy in the order of the tokens, and a mask.
  const std::int64_t row = shape.heads * shape.head_dim;
  return static_cast<std::uint64_t>(length * row * 4) * c10::elementSize(dtype) +
         (shape.window > 0 && shape.window < length ? static_cast<std::uint64_t>(length * length * 7) : 0);
}

at::Tensor attention(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                     const std::vector<std::int64_t>& offsets, const AttentionShape& shape) {
  const cpu::Table& kernels = cpu::table();
  if (!query.is_cpu() || !has_fused_attention(query.scalar_type(), shape))
    return attention_reference(query, key, value, offsets, shape);
  const at::Tensor q = query.contiguous(), k = key.contiguous(), v = value.contiguous();
  at::Tensor output = at::empty_like(q);
  const auto samples = static_cast<std::int64_t>(offsets.size()) - 1;
  const std::int64_t group = shape.heads / shape.kv_heads;
  std::int64_t longest = 0;
  for (std::int64_t i = 0; i < samples; ++i) longest = std::max(longest, offsets[i + 1] - offsets[i]);
  at::parallel_for(0, samples * shape.kv_heads, 1, [&](std::int64_t begin, std::int64_t end) {
    const Scratch scratch(kernels.attention_workspace(longest, shape.head_dim));
    for (std::int64_t item = begin; item < end; ++item) {
      const std::int64_t first = offsets[item / shape.kv_heads], head = item % shape.kv_heads;
      cpu::AttentionTask task;
      task.query_stride = q.size(1);
      task.key_stride = k.size(1);
      task.q = bits(q) + first * task.query_stride + head * group * shape.head_dim;
      task.k = bits(k) + first * task.key_stride + head * shape.head_dim;
      task.v = bits(v) + first * task.key_stride + head * shape.head_dim;
      task.output = mutable_bits(output) + first * task.query_stride + head * group * shape.head_dim;
      task.length = offsets[item / shape.kv_heads + 1] - first;
      task.heads = group;
      task.head_dim = shape.head_dim;
      task.window = shape.window;
      task.scale = static_cast<float>(shape.scale);
      task.workspace = scratch.get();
      if (task.length > 0) kernels.attention_bf16(task);
    }
  });
  return output;
}

}  // namespace layerpress::kernels
