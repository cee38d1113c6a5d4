#pragma once

#include <functional>
#include <string>

#include "layerpress/graph/tracer.h"
#include "layerpress/model/architecture.h"
#include "layerpress/model/decoder_config.h"

namespace layerpress::model {

/// What distinguishes one self-attention block from another.
struct SelfAttention {
  std::string class_name;       ///< "LlamaAttention"
  std::string norm_class_name;  ///< class of the q/k norms, "" without them
  bool qkv_bias = false;
  bool output_bias = false;
  std::int64_t window = 0;
  std::int64_t rope_table = 0;
};

/// Module "self_attn": q/k/v projections, optional per-head norms of q and k, rotary, causal attention, o_proj.
graph::Symbol self_attention(graph::Tracer& tracer, const DecoderConfig& config, const SelfAttention& block,
                             graph::Symbol x);

/// Module "mlp": down(activation(gate(x)) * up(x)).
graph::Symbol gated_mlp(graph::Tracer& tracer, const DecoderConfig& config, const std::string& class_name, bool bias,
                        graph::Symbol x);

/// Class names of a causal language model, "Llama" -> LlamaModel, LlamaDecoderLayer, LlamaRMSNorm.
/// Traces embed_tokens, `layer(index, x)` inside module model.layers.<index>, the final norm and lm_head (tied or not).
TracedModel causal_language_model(
    const std::string& class_prefix, const DecoderConfig& config, const Json& raw_config,
    const std::function<graph::Symbol(graph::Tracer&, std::int64_t, graph::Symbol)>& layer);

/// The pre-norm decoder layer that Llama and its kin share:
/// x + attention(norm(x)), then x + mlp(norm(x)).
graph::Symbol pre_norm_layer(graph::Tracer& tracer, const DecoderConfig& config, const std::string& class_prefix,
                             const SelfAttention& attention, bool mlp_bias, graph::Symbol x);

}  // namespace layerpress::model
