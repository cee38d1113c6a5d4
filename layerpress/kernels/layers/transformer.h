#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

namespace layerpress::kernels {

// The operations of a transformer layer for which ATen launches several kernels. Tensors are [tokens, features] with
// contiguous rows, bf16/fp16/fp32 on any device. On a CPU, bf16 and fp32 run fused and multi-threaded; everything else
// uses ATen.

/// How the weight of a norm is applied and where the result is rounded to x's dtype, which differs between models.
struct NormWeight {
  double offset = 0;  ///< added to the weight
  bool rounded_once =
      false;  ///< round only after the weight (plus offset) is applied in fp32; otherwise also before it
};

/// x / sqrt(mean(x²) + epsilon) * weight over weight.numel() consecutive features. `how.offset` needs
/// `how.rounded_once`.
at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& weight, double epsilon, const NormWeight& how = {});

/// function(a) * b; "silu", "gelu" (exact) or "gelu_tanh".
at::Tensor gated_activation(const std::string& function, const at::Tensor& a, const at::Tensor& b);

/// sum[rows[i]] += output[i] * weights[rows[i]]; the product is rounded to the dtype before it is added. sum and output
/// are [.., features]; rows is int64 without repetitions; weights is [rows of sum] of the same dtype.
void add_weighted_rows(at::Tensor& sum, const at::Tensor& output, const at::Tensor& rows, const at::Tensor& weights);

struct RotaryShape {
  std::int64_t head_dim = 0;
  std::int64_t offset = 0;   ///< first rotated feature of a head
  bool interleaved = false;  ///< the two features of a pair are adjacent, not in two halves
};

/// Rotates 2 * pairs features of each head of x. cosine and sine are fp32 [positions, pairs]; positions is int64
/// [tokens].
at::Tensor rotary(const at::Tensor& x, const at::Tensor& cosine, const at::Tensor& sine, const at::Tensor& positions,
                  const RotaryShape& shape);

struct AttentionShape {
  std::int64_t heads = 0;
  std::int64_t kv_heads = 0;
  std::int64_t head_dim = 0;
  double scale = 1;
  std::int64_t window = 0;          ///< 0: no window
  double soft_cap = 0;              ///< if > 0, scores are soft_cap * tanh(scale * q·k / soft_cap)
  std::int64_t value_head_dim = 0;  ///< head size of v and the output; 0: head_dim
  std::int64_t value_dim() const { return value_head_dim > 0 ? value_head_dim : head_dim; }
};

/// Causal attention inside each of the packed samples; sample i is tokens [offsets[i], offsets[i + 1]).
/// q [tokens, heads * head_dim], k [tokens, kv_heads * head_dim], v [tokens, kv_heads * value_dim]
/// -> [tokens, heads * value_dim].
at::Tensor attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                     const std::vector<std::int64_t>& offsets, const AttentionShape& shape);

/// Tokens of the longest of packed samples; 0 without any.
std::int64_t longest_sample(const std::vector<std::int64_t>& offsets);

/// Tokens [first, last) of the sample that starts at token `sample`.
struct SampleSpan {
  std::int64_t sample = 0, first = 0, last = 0;
};

/// Computes the rows of a span anew in `result`, which attention() made of the same arguments: its tokens also see the later
/// ones of it. For any device.
void attend_within_span(at::Tensor& result, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                        const SampleSpan& span, const AttentionShape& shape);

/// The most memory, in bytes, that attend_within_span() allocates for a sample of `tokens` tokens.
std::uint64_t span_workspace_bytes(std::int64_t tokens, const AttentionShape& shape);

/// The most memory, in bytes, that attention() allocates besides its result.
std::uint64_t attention_workspace_bytes(const std::vector<std::int64_t>& offsets, const AttentionShape& shape,
                                        at::Device device, at::ScalarType dtype, int threads);

/// The same with ATen, sample by sample, with all scores in memory at once, for any device; also the plain
/// implementation for tests.
at::Tensor plain_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                           const std::vector<std::int64_t>& offsets, const AttentionShape& shape);
at::Tensor plain_rms_norm(const at::Tensor& x, const at::Tensor& weight, double epsilon, const NormWeight& how = {});
at::Tensor plain_gated_activation(const std::string& function, const at::Tensor& a, const at::Tensor& b);
at::Tensor plain_rotary(const at::Tensor& x, const at::Tensor& cosine, const at::Tensor& sine,
                        const at::Tensor& positions, const RotaryShape& shape);

}  // namespace layerpress::kernels
