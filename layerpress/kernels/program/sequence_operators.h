#pragma once

namespace layerpress::kernels {

/// Makes the operators of namespace "layerpress" known to the dispatcher, once. They stand for whole computations in
/// imported graphs, on one sample: batch 1, tokens in order.
///
///   attention             q [1, heads, T, d], k, v [1, kv_heads, T, d] -> [1, T, heads, d], with masks that are causal,
///                         sliding, chunked, bidirectional or given, biases, sinks and soft caps
///   experts               sum over the chosen experts of weight * down(gate(gate_up(x)))
///   causal_conv1d         depthwise convolution over [1, channels, T] with what came before
///   gated_delta_rule      linear attention with a decay per head (Yang et al. 2024, arXiv:2412.06464)
///   kimi_delta_attention  the same with a decay per feature of k (arXiv:2510.26692)
///   mamba2_scan           state space with a scalar decay per head (Dao and Gu 2024, arXiv:2405.21060)
///   selective_scan        state space with a decay per channel and state (Gu and Dao 2023, arXiv:2312.00752)
///   wkv                   mean of values, weighted by keys that decay per channel (Peng et al. 2023, arXiv:2305.13048)
///   linear_recurrence     state = decay * state + x per channel (De et al. 2024, arXiv:2402.19427)
///   mlstm                 matrix memory with exponential gates (Beck et al. 2024, arXiv:2405.04517)
///   grouped_product       rows that are sorted by group, each group times a matrix of its own
///
/// Recurrences run token by token in fp32, on the CPU whatever the device.
void register_sequence_operators();

}  // namespace layerpress::kernels
