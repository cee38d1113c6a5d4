#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

namespace layerpress::kernels {

// The pieces of a transformer layer for which ATen launches several kernels. Tensors are [tokens, features], rows
// contiguous, bf16/fp16/fp32 on any device; on a CPU bf16 and fp32 run fused and multi-threaded, all else through ATen.

/// x / sqrt(mean(x²) + epsilon) * weight over runs of weight.numel() features; the normalized value is rounded to x's
/// dtype before the multiplication, as transformers does.
at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& weight, double epsilon);

/// function(a) * b; "silu", "gelu" (exact) or "gelu_tanh".
at::Tensor gated_activation(const std::string& function, const at::Tensor& a, const at::Tensor& b);

/// Rotates each head of x. cosine and sine are fp32 [positions, pairs]; positions is int64 [tokens].
at::Tensor rotary(const at::Tensor& x, const at::Tensor& cosine, const at::Tensor& sine, const at::Tensor& positions,
                  std::int64_t head_dim);

struct AttentionShape {
  std::int64_t heads = 0;
  std::int64_t kv_heads = 0;
  std::int64_t head_dim = 0;
  double scale = 1;
  std::int64_t window = 0;  ///< 0: no window
};

/// Causal attention inside each of the packed samples; sample i is tokens [offsets[i], offsets[i + 1]).
/// q [tokens, heads * head_dim], k and v [tokens, kv_heads * head_dim] -> [tokens, heads * head_dim].
at::Tensor attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                     const std::vector<std::int64_t>& offsets, const AttentionShape& shape);

/// Most memory that attention() allocates on a CPU beside its result, in bytes, when the longest sample has `length` tokens.
std::uint64_t attention_workspace_bytes(std::int64_t length, const AttentionShape& shape, at::ScalarType dtype,
                                        int threads);

/// The same through ATen's scaled_dot_product_attention, sample by sample: any device, and the tests' reference.
at::Tensor attention_reference(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                               const std::vector<std::int64_t>& offsets, const AttentionShape& shape);
at::Tensor rms_norm_reference(const at::Tensor& x, const at::Tensor& weight, double epsilon);
at::Tensor gated_activation_reference(const std::string& function, const at::Tensor& a, const at::Tensor& b);
at::Tensor rotary_reference(const at::Tensor& x, const at::Tensor& cosine, const at::Tensor& sine,
                            const at::Tensor& positions, std::int64_t head_dim);

}  // namespace layerpress::kernels
