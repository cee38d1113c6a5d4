#include "layerpress/kernels/program/gated_recurrences.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "layerpress/kernels/fp32_on_cpu.h"

namespace layerpress::kernels {
namespace {

/// Calls step(state, place, channel) for each token of each channel, in the order of the tokens. A channel has its own state.
template <typename State, typename Step>
void for_each_channel(std::int64_t tokens, std::int64_t channels, Step&& step) {
  at::parallel_for(0, channels, 64, [&](std::int64_t begin, std::int64_t end) {
    std::vector<State> states(static_cast<std::size_t>(end - begin));
    for (std::int64_t t = 0; t < tokens; ++t)
      for (std::int64_t c = begin; c < end; ++c) step(states[static_cast<std::size_t>(c - begin)], t * channels + c, c);
  });
}

/// The weighted mean of the values so far. Both sums are held relative to exp(greatest), so that they cannot overflow.
struct WkvState {
  float numerator = 0, denominator = 0, greatest = -1e38F;

  float with(float key, float value) const {
    const float top = std::max(greatest, key), kept = std::exp(greatest - top), own = std::exp(key - top);
    return (kept * numerator + own * value) / (kept * denominator + own);
  }
  void add(float key, float value, float decay) {
    const float top = std::max(greatest + decay, key), kept = std::exp(greatest + decay - top);
    const float own = std::exp(key - top);
    numerator = kept * numerator + own * value;
    denominator = kept * denominator + own;
    greatest = top;
  }
};

/// One head of an mLSTM: a matrix [rows, columns] = [features of k, features of v] and the sum of the keys, both
/// relative to exp(greatest).
struct MlstmHead {
  std::int64_t rows, columns;
  float epsilon;
  std::vector<float> matrix, keys;
  float greatest = 0;

  MlstmHead(std::int64_t rows, std::int64_t columns, double epsilon)
      : rows(rows),
        columns(columns),
        epsilon(static_cast<float>(epsilon)),
        matrix(static_cast<std::size_t>(rows * columns), 0.0F),
        keys(static_cast<std::size_t>(rows), 0.0F) {}

  void step(const float* q, const float* k, const float* v, float input, float forget, float* out) {
    const float log_forget = forget < 0 ? forget - std::log1p(std::exp(forget)) : -std::log1p(std::exp(-forget));
    const float top = std::max(log_forget + greatest, input);
    const float kept = std::exp(log_forget + greatest - top), own = std::exp(input - top);
    const float scale = 1.0F / std::sqrt(static_cast<float>(rows));
    greatest = top;
    std::fill(out, out + columns, 0.0F);
    float product = 0;
    for (std::int64_t i = 0; i < rows; ++i) {
      float* row = matrix.data() + i * columns;
      float& sum = keys[static_cast<std::size_t>(i)];
      sum = kept * sum + own * k[i];
      product += q[i] * scale * sum;
      for (std::int64_t j = 0; j < columns; ++j) {
        row[j] = kept * row[j] + own * k[i] * v[j];
        out[j] += q[i] * scale * row[j];
      }
    }
    const float divisor = std::max(std::abs(product), std::exp(-top)) + epsilon;
    for (std::int64_t j = 0; j < columns; ++j) out[j] /= divisor;
  }
};

}  // namespace

at::Tensor wkv(const at::Tensor& decay, const at::Tensor& first, const at::Tensor& key, const at::Tensor& value) {
  TORCH_CHECK(key.dim() == 3 && key.size(0) == 1 && key.sizes() == value.sizes() && decay.numel() == key.size(2) &&
                  first.numel() == key.size(2),
              "wkv takes decay, first [channels] and key, value [1, T, channels]");
  const std::int64_t tokens = key.size(1), channels = key.size(2);
  const at::Tensor decays = -fp32_on_cpu(decay).exp(), firsts = fp32_on_cpu(first), keys = fp32_on_cpu(key),
                   values = fp32_on_cpu(value);
  const at::Tensor result = at::empty(keys.sizes(), keys.options());
  const float *dp = decays.const_data_ptr<float>(), *fp = firsts.const_data_ptr<float>();
  const float *kp = keys.const_data_ptr<float>(), *vp = values.const_data_ptr<float>();
  auto* out = result.data_ptr<float>();
  for_each_channel<WkvState>(tokens, channels, [&](WkvState& state, std::int64_t at, std::int64_t c) {
    out[at] = state.with(kp[at] + fp[c], vp[at]);
    state.add(kp[at], vp[at], dp[c]);
  });
  return result.to(key.device(), key.scalar_type());
}

at::Tensor linear_recurrence(const at::Tensor& x, const at::Tensor& decay) {
  TORCH_CHECK(x.dim() == 3 && x.size(0) == 1 && x.sizes() == decay.sizes(),
              "linear_recurrence takes x and decay [1, T, channels]");
  const std::int64_t tokens = x.size(1), channels = x.size(2);
  const at::Tensor xs = fp32_on_cpu(x), decays = fp32_on_cpu(decay), result = at::empty(xs.sizes(), xs.options());
  const float *xp = xs.const_data_ptr<float>(), *dp = decays.const_data_ptr<float>();
  auto* out = result.data_ptr<float>();
  for_each_channel<float>(tokens, channels, [&](float& state, std::int64_t at, std::int64_t) {
    out[at] = state = dp[at] * state + xp[at];
  });
  return result.to(x.device(), x.scalar_type());
}

at::Tensor mlstm(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const at::Tensor& input,
                 const at::Tensor& forget, double epsilon) {
  TORCH_CHECK(q.dim() == 4 && q.size(0) == 1 && q.sizes() == k.sizes() && v.dim() == 4 && v.size(0) == 1 &&
                  v.size(1) == q.size(1) && v.size(2) == q.size(2) && input.numel() == q.size(1) * q.size(2) &&
                  forget.sizes() == input.sizes(),
              "mlstm takes q, k [1, heads, T, d], v [1, heads, T, e] and gates [1, heads, T]");
  const std::int64_t heads = q.size(1), tokens = q.size(2), rows = q.size(3), columns = v.size(3);
  const at::Tensor qs = fp32_on_cpu(q), ks = fp32_on_cpu(k), vs = fp32_on_cpu(v), is = fp32_on_cpu(input),
                   fs = fp32_on_cpu(forget);
  const at::Tensor result = at::empty(vs.sizes(), vs.options());
  const float *qp = qs.const_data_ptr<float>(), *kp = ks.const_data_ptr<float>(), *vp = vs.const_data_ptr<float>();
  const float *ip = is.const_data_ptr<float>(), *fp = fs.const_data_ptr<float>();
  auto* out = result.data_ptr<float>();
  at::parallel_for(0, heads, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t h = begin; h < end; ++h) {
      MlstmHead head(rows, columns, epsilon);
      for (std::int64_t at = h * tokens; at < (h + 1) * tokens; ++at)
        head.step(qp + at * rows, kp + at * rows, vp + at * columns, ip[at], fp[at], out + at * columns);
    }
  });
  return result.to(v.device(), v.scalar_type());
}

}  // namespace layerpress::kernels
