#include "layerpress/kernels/program/sequence_recurrences.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <cmath>
#include <vector>

#include "layerpress/base/error.h"
#include "layerpress/kernels/fp32_on_cpu.h"

namespace layerpress::kernels {
namespace {

at::Tensor unit_rows(const at::Tensor& x) { return x * (x * x).sum(-1, true).add(1e-6).rsqrt(); }

/// y[j] += factor * x[j].
void add_scaled(float* y, const float* x, float factor, std::int64_t count) {
  for (std::int64_t j = 0; j < count; ++j) y[j] += factor * x[j];
}

/// One token of the delta rule for one head. `state` is [rows, columns] = [features of k, features of v].
struct DeltaStep {
  std::int64_t rows, columns;
  void run(float* state, const float* q, const float* k, const float* v, const float* decay, bool decay_per_row,
           float beta, float* memory, float* out) const {
    std::fill(memory, memory + columns, 0.0F);
    std::fill(out, out + columns, 0.0F);
    for (std::int64_t i = 0; i < rows; ++i) {
      float* row = state + i * columns;
      const float keep = std::exp(decay[decay_per_row ? i : 0]);
      for (std::int64_t j = 0; j < columns; ++j) row[j] *= keep;
      add_scaled(memory, row, k[i], columns);
    }
    for (std::int64_t j = 0; j < columns; ++j) memory[j] = (v[j] - memory[j]) * beta;
    for (std::int64_t i = 0; i < rows; ++i) {
      float* row = state + i * columns;
      add_scaled(row, memory, k[i], columns);
      add_scaled(out, row, q[i], columns);
    }
  }
};

/// dt as the recurrences use it, fp32.
at::Tensor time_steps(const at::Tensor& dt, const std::optional<at::Tensor>& bias, bool softplus) {
  at::Tensor steps = bias ? dt + bias->to(dt.scalar_type()) : dt;
  return softplus ? at::softplus(steps) : steps;
}

}  // namespace

at::Tensor causal_conv1d(const at::Tensor& x, const at::Tensor& weight, const std::optional<at::Tensor>& bias,
                         c10::string_view activation) {
  TORCH_CHECK(x.dim() == 3 && weight.dim() == 2, "causal_conv1d takes [1, channels, tokens] and [channels, width]");
  const std::int64_t width = weight.size(-1), tokens = x.size(2);
  at::Tensor y =
      at::conv1d(x.to(weight.scalar_type()), weight.unsqueeze(1), bias, 1, width - 1, 1, x.size(1)).slice(2, 0, tokens);
  if (activation == "silu" || activation == "swish")
    y = at::silu(y);
  else
    TORCH_CHECK(activation.empty(), "causal_conv1d has no activation '", std::string(activation), "'");
  return y.to(x.scalar_type());
}

at::Tensor delta_rule(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const at::Tensor& g,
                      const at::Tensor& beta, bool l2norm) {
  TORCH_CHECK(q.dim() == 4 && q.sizes() == k.sizes() && v.dim() == 4 && v.size(1) == q.size(1) &&
                  v.size(2) == q.size(2) && q.size(0) == 1 && v.size(0) == 1,
              "the delta rule takes q, k and v of one sample with equally many heads");
  TORCH_CHECK(
      g.numel() == q.size(1) * q.size(2) * (g.dim() == 4 ? q.size(3) : 1) && beta.numel() == q.size(1) * q.size(2),
      "the delta rule takes a decay and a beta for each token and head");
  const std::int64_t tokens = q.size(1), heads = q.size(2);
  const DeltaStep step{q.size(3), v.size(3)};
  at::Tensor queries = fp32_on_cpu(q), keys = fp32_on_cpu(k);
  if (l2norm) queries = unit_rows(queries), keys = unit_rows(keys);
  queries = (queries / std::sqrt(static_cast<double>(step.rows))).contiguous();
  keys = keys.contiguous();
  const at::Tensor values = fp32_on_cpu(v), decays = fp32_on_cpu(g), betas = fp32_on_cpu(beta);
  const at::Tensor result = at::empty(values.sizes(), values.options());
  const bool per_row = g.dim() == 4;
  const float *qs = queries.const_data_ptr<float>(), *ks = keys.const_data_ptr<float>();
  const float *vs = values.const_data_ptr<float>(), *gs = decays.const_data_ptr<float>();
  const float* bs = betas.const_data_ptr<float>();
  auto* out = result.data_ptr<float>();
  at::parallel_for(0, heads, 1, [&](std::int64_t first, std::int64_t last) {
    std::vector<float> state, memory(static_cast<std::size_t>(step.columns));
    for (std::int64_t head = first; head < last; ++head) {
      state.assign(static_cast<std::size_t>(step.rows * step.columns), 0.0F);
      for (std::int64_t t = 0; t < tokens; ++t) {
        const std::int64_t at = t * heads + head;
        step.run(state.data(), qs + at * step.rows, ks + at * step.rows, vs + at * step.columns,
                 gs + at * (per_row ? step.rows : 1), per_row, bs[at], memory.data(), out + at * step.columns);
      }
    }
  });
  return result.to(v.device(), v.scalar_type());
}

at::Tensor mamba2_scan(const at::Tensor& x, const at::Tensor& dt, const at::Tensor& a, const at::Tensor& b,
                       const at::Tensor& c, const std::optional<at::Tensor>& d,
                       const std::optional<at::Tensor>& dt_bias, bool softplus, double low, double high) {
  TORCH_CHECK(x.dim() == 4 && x.size(0) == 1 && b.dim() == 4 && b.sizes() == c.sizes() && b.size(1) == x.size(1) &&
                  b.size(2) > 0 && x.size(2) % b.size(2) == 0 && dt.numel() == x.size(1) * x.size(2) &&
                  a.numel() == x.size(2),
              "mamba2_scan takes x [1, T, heads, d], dt [1, T, heads], A [heads] and B, C [1, T, groups, states]");
  const std::int64_t tokens = x.size(1), heads = x.size(2), width = x.size(3), states = b.size(3);
  const std::int64_t groups = b.size(2), per_group = heads / groups;
  const at::Tensor xs = fp32_on_cpu(x), steps = fp32_on_cpu(at::clamp(time_steps(dt, dt_bias, softplus), low, high));
  const at::Tensor as = fp32_on_cpu(a), bs = fp32_on_cpu(b), cs = fp32_on_cpu(c),
                   skips = d ? fp32_on_cpu(*d) : at::Tensor();
  TORCH_CHECK(!d || d->numel() == heads, "mamba2_scan takes D [heads]");
  const at::Tensor result = at::empty(xs.sizes(), xs.options());
  const float *xp = xs.const_data_ptr<float>(), *sp = steps.const_data_ptr<float>(), *ap = as.const_data_ptr<float>();
  const float *bp = bs.const_data_ptr<float>(), *cp = cs.const_data_ptr<float>();
  const float* dp = d ? skips.const_data_ptr<float>() : nullptr;
  auto* out = result.data_ptr<float>();
  at::parallel_for(0, heads, 1, [&](std::int64_t first, std::int64_t last) {
    std::vector<float> state;
    for (std::int64_t head = first; head < last; ++head) {
      state.assign(static_cast<std::size_t>(width * states), 0.0F);
      for (std::int64_t t = 0; t < tokens; ++t) {
        const std::int64_t at = t * heads + head, group = (t * groups + head / per_group) * states;
        const float step = sp[at], keep = std::exp(ap[head] * step);
        for (std::int64_t i = 0; i < width; ++i) {
          float* row = state.data() + i * states;
          const float value = xp[at * width + i];
          float sum = dp == nullptr ? 0.0F : dp[head] * value;
          for (std::int64_t j = 0; j < states; ++j) {
            row[j] = row[j] * keep + value * step * bp[group + j];
            sum += row[j] * cp[group + j];
          }
          out[at * width + i] = sum;
        }
      }
    }
  });
  return result.to(x.device(), x.scalar_type());
}

at::Tensor selective_scan(const at::Tensor& x, const at::Tensor& dt, const at::Tensor& a, const at::Tensor& b,
                          const at::Tensor& c, const std::optional<at::Tensor>& d, const std::optional<at::Tensor>& z,
                          const std::optional<at::Tensor>& dt_bias, bool softplus) {
  TORCH_CHECK(x.dim() == 3 && x.size(0) == 1 && dt.sizes() == x.sizes() && a.dim() == 2 && a.size(0) == x.size(1) &&
                  b.dim() == 3 && b.sizes() == c.sizes() && b.size(1) == a.size(1) && b.size(2) == x.size(2),
              "selective_scan takes x, dt [1, channels, T], A [channels, states] and B, C [1, states, T]");
  const std::int64_t channels = x.size(1), tokens = x.size(2), states = a.size(1);
  std::optional<at::Tensor> bias;
  if (dt_bias) bias = dt_bias->unsqueeze(-1);
  const at::Tensor xs = fp32_on_cpu(x), steps = fp32_on_cpu(time_steps(dt, bias, softplus)), as = fp32_on_cpu(a);
  const at::Tensor bs = fp32_on_cpu(b.transpose(1, 2)), cs = fp32_on_cpu(c.transpose(1, 2));
  TORCH_CHECK(!d || d->numel() == channels, "selective_scan takes D [channels]");
  const at::Tensor skips = d ? fp32_on_cpu(*d) : at::zeros({channels}, xs.options());
  at::Tensor result = at::empty(xs.sizes(), xs.options());
  const float *xp = xs.const_data_ptr<float>(), *sp = steps.const_data_ptr<float>(), *ap = as.const_data_ptr<float>();
  const float *bp = bs.const_data_ptr<float>(), *cp = cs.const_data_ptr<float>();
  const float* dp = skips.const_data_ptr<float>();
  auto* out = result.data_ptr<float>();
  at::parallel_for(0, channels, 1, [&](std::int64_t first, std::int64_t last) {
    std::vector<float> state;
    for (std::int64_t channel = first; channel < last; ++channel) {
      state.assign(static_cast<std::size_t>(states), 0.0F);
      for (std::int64_t t = 0; t < tokens; ++t) {
        const float value = xp[channel * tokens + t], step = sp[channel * tokens + t];
        float sum = dp[channel] * value;
        for (std::int64_t j = 0; j < states; ++j) {
          const auto place = static_cast<std::size_t>(j);
          state[place] = state[place] * std::exp(ap[channel * states + j] * step) + step * bp[t * states + j] * value;
          sum += state[place] * cp[t * states + j];
        }
        out[channel * tokens + t] = sum;
      }
    }
  });
  if (z) result = result * at::silu(fp32_on_cpu(*z));
  return result.to(x.device(), x.scalar_type());
}

}  // namespace layerpress::kernels
