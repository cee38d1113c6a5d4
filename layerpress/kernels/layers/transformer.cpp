#include "layerpress/kernels/layers/transformer.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <algorithm>
#include <optional>
#include <type_traits>
#include <vector>

#include "layerpress/kernels/cpu/table.h"
#include "layerpress/kernels/layers/device_layers.h"
#include "layerpress/kernels/products/tensor_bits.h"

namespace layerpress::kernels {
namespace {

bool runs_fused(const at::Tensor& x) {
  return x.is_cpu() && (x.scalar_type() == at::kBFloat16 || x.scalar_type() == at::kFloat);
}

/// Rows per thread, such that each thread gets at least about 64k elements.
std::int64_t grain(std::int64_t elements_per_row) { return std::max<std::int64_t>(1, 65536 / elements_per_row); }

/// Rows of a norm that is rounded once: in fp32, several at a time.
void rms_norm_once(const at::Tensor& x, const at::Tensor& weight, float epsilon, at::Tensor& y) {
  const std::int64_t size = weight.numel(), rows = x.numel() / size, chunk = std::max<std::int64_t>(1, 4096 / size);
  at::parallel_for(0, rows, grain(size), [&](std::int64_t begin, std::int64_t end) {
    std::vector<float> wide(static_cast<std::size_t>(chunk * size)), normalized(wide.size());
    auto* narrow = static_cast<c10::BFloat16*>(y.data_ptr());
    for (std::int64_t first = begin; first < end; first += chunk) {
      const std::int64_t count = std::min(chunk, end - first), at = first * size;
      cpu::table().widen_bf16(bits(x) + at, wide.data(), count * size);
      cpu::table().f32.rms_norm(wide.data(), weight.const_data_ptr<float>(), normalized.data(), count, size, epsilon);
      for (std::int64_t i = 0; i < count * size; ++i) narrow[at + i] = normalized[static_cast<std::size_t>(i)];
    }
  });
}

}  // namespace

at::Tensor rms_norm(const at::Tensor& input, const at::Tensor& weight, double epsilon, const NormWeight& how) {
  if (std::optional<at::Tensor> y = rms_norm_on_device(input, weight, epsilon, how)) return *y;
  if (!runs_fused(input) || (!how.rounded_once && weight.scalar_type() != input.scalar_type()))
    return plain_rms_norm(input, weight, epsilon, how);
  if (how.rounded_once && input.scalar_type() == at::kBFloat16) {
    at::Tensor rounded = at::empty_like(input, at::MemoryFormat::Contiguous);
    const at::Tensor factor = (weight.to(at::kFloat) + how.offset).contiguous();
    rms_norm_once(input.contiguous(), factor, static_cast<float>(epsilon), rounded);
    return rounded;
  }
  const at::Tensor x = input.contiguous();
  const at::Tensor w = (how.rounded_once ? weight.to(at::kFloat) + how.offset : weight).contiguous();
  at::Tensor y = at::empty_like(x);
  const std::int64_t size = w.numel(), rows = x.numel() / size;
  const auto eps = static_cast<float>(epsilon);
  at::parallel_for(0, rows, grain(size), [&](std::int64_t begin, std::int64_t end) {
    const std::int64_t at = begin * size;
    with_elementwise(x.scalar_type(), [&]<typename T>(const cpu::Elementwise<T>& kernels) {
      kernels.rms_norm(elements<T>(x) + at, elements<T>(w), mutable_elements<T>(y) + at, end - begin, size, eps);
    });
  });
  return y;
}

at::Tensor gated_activation(const std::string& function, const at::Tensor& first, const at::Tensor& second) {
  if (function == "silu")
    if (std::optional<at::Tensor> y = silu_multiply_on_device(first, second)) return *y;
  if (function != "silu" || !runs_fused(first)) return plain_gated_activation(function, first, second);
  const at::Tensor a = first.contiguous(), b = second.contiguous();
  at::Tensor y = at::empty_like(a);
  at::parallel_for(0, a.numel(), 65536, [&](std::int64_t begin, std::int64_t end) {
    with_elementwise(a.scalar_type(), [&]<typename T>(const cpu::Elementwise<T>& kernels) {
      kernels.silu_multiply(elements<T>(a) + begin, elements<T>(b) + begin, mutable_elements<T>(y) + begin,
                            end - begin);
    });
  });
  return y;
}

void add_weighted_rows(at::Tensor& sum, const at::Tensor& output, const at::Tensor& rows, const at::Tensor& weights) {
  const at::Tensor factors = weights.index_select(0, rows).contiguous();
  if (!sum.is_cpu() || sum.scalar_type() != at::kBFloat16 || !sum.is_contiguous()) {
    sum.index_add_(0, rows, output * factors.unsqueeze(1));
    return;
  }
  const at::Tensor added = output.contiguous();
  const std::int64_t features = sum.size(1);
  const auto* places = rows.const_data_ptr<std::int64_t>();
  const auto* factor = factors.const_data_ptr<c10::BFloat16>();
  cpu::Bits16* target = mutable_bits(sum);
  at::parallel_for(0, rows.size(0), grain(features), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i)
      cpu::table().add_scaled_bf16(bits(added) + i * features, static_cast<float>(factor[i]),
                                   target + places[i] * features, features);
  });
}

namespace {

/// The table's kernels rotate the first features of heads of one size. Shifted by the offset, all heads but the last
/// look like such heads: the copied features are the unrotated end of one head and the beginning of the next.
template <typename T, typename Kernel>
void rotate_halves(const T* x, const float* cosine, const float* sine, T* y, std::int64_t heads,
                   const RotaryShape& shape, std::int64_t pairs, Kernel kernel) {
  const std::int64_t last = (heads - 1) * shape.head_dim + shape.offset;
  std::copy_n(x, shape.offset, y);
  kernel(x + shape.offset, cosine, sine, y + shape.offset, heads - 1, shape.head_dim, pairs);
  kernel(x + last, cosine, sine, y + last, 1, shape.head_dim - shape.offset, pairs);
}

template <typename T>
void rotate_neighbours(const T* x, const float* cosine, const float* sine, T* y, std::int64_t heads,
                       const RotaryShape& shape, std::int64_t pairs) {
  for (std::int64_t head = 0; head < heads; ++head, x += shape.head_dim, y += shape.head_dim) {
    std::copy_n(x, shape.head_dim, y);
    for (std::int64_t i = 0; i < pairs; ++i) {
      const std::int64_t at = shape.offset + 2 * i;
      const auto first = static_cast<float>(x[at]), second = static_cast<float>(x[at + 1]);
      y[at] = static_cast<T>(first * cosine[i] - second * sine[i]);
      y[at + 1] = static_cast<T>(second * cosine[i] + first * sine[i]);
    }
  }
}

}  // namespace

at::Tensor rotary(const at::Tensor& input, const at::Tensor& cosine, const at::Tensor& sine,
                  const at::Tensor& positions, const RotaryShape& shape) {
  if (std::optional<at::Tensor> y = rotary_on_device(input, cosine, sine, positions, shape)) return *y;
  if (!runs_fused(input)) return plain_rotary(input, cosine, sine, positions, shape);
  const at::Tensor x = input.contiguous();
  at::Tensor y = at::empty_like(x);
  const std::int64_t features = x.size(1), heads = features / shape.head_dim, pairs = cosine.size(1);
  const std::int64_t* position = positions.const_data_ptr<std::int64_t>();
  at::parallel_for(0, x.size(0), grain(features), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t token = begin; token < end; ++token) {
      const float* c = cosine.const_data_ptr<float>() + position[token] * pairs;
      const float* s = sine.const_data_ptr<float>() + position[token] * pairs;
      const std::int64_t at = token * features;
      with_elementwise(x.scalar_type(), [&]<typename T>(const cpu::Elementwise<T>& kernels) {
        using Value = std::conditional_t<std::is_same_v<T, float>, float, c10::BFloat16>;
        if (shape.interleaved)
          rotate_neighbours(elements<Value>(x) + at, c, s, mutable_elements<Value>(y) + at, heads, shape, pairs);
        else
          rotate_halves(elements<T>(x) + at, c, s, mutable_elements<T>(y) + at, heads, shape, pairs, kernels.rotary);
      });
    }
  });
  return y;
}

}  // namespace layerpress::kernels
