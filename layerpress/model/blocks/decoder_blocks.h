#pragma once

#include <functional>
#include <string>
#include <vector>

#include "layerpress/graph/tracer.h"
#include "layerpress/model/blocks/architecture.h"
#include "layerpress/model/blocks/decoder_config.h"

namespace layerpress::model {

/// The properties in which self-attention blocks differ.
struct SelfAttention {
  std::string class_name;         ///< "LlamaAttention"
  std::string norm_class_name{};  ///< class of the q/k norms, "" for none
  bool qkv_bias = false;
  bool output_bias = false;
  std::int64_t window = 0;
  std::int64_t rope_table = 0;
  bool norms_whole_rows = false;  ///< q/k norms over all heads together, not over each head
  bool rotates = true;            ///< false: positions are not encoded
  bool interleaved = false;       ///< as in graph::Rotary
  double scale = 0;               ///< scale of the scores; 0: 1 / sqrt(head_dim)
  double soft_cap = 0;            ///< as in graph::Attention
};

/// One whose projections have biases if config.json's attention_bias says so.
SelfAttention configured_attention(const Json& config, const std::string& class_name,
                                   const std::string& norm_class_name = "");

/// A norm of the config's kind, over `size` consecutive features or the whole row (0).
graph::Symbol decoder_norm(graph::Tracer& tracer, const DecoderConfig& config, const std::string& name,
                           const std::string& class_name, graph::Symbol x, std::int64_t size = 0);

/// "LlamaRMSNorm", or "Cohere2LayerNorm".
std::string norm_class(const DecoderConfig& config, const std::string& class_prefix);

/// Module "self_attn": q/k/v projections, optional norms of q and k, rotary, causal attention, o_proj.
graph::Symbol self_attention(graph::Tracer& tracer, const DecoderConfig& config, const SelfAttention& block,
                             graph::Symbol x);

/// Module "mlp": down(activation(gate(x)) * up(x)).
graph::Symbol gated_mlp(graph::Tracer& tracer, const DecoderConfig& config, const std::string& class_name, bool bias,
                        graph::Symbol x);

/// The parts of a language model before and after its layers.
struct ModelEnds {
  graph::Scale embedding_scale{};  ///< scale of the embeddings
  double logit_scale = 1;
  double logit_cap = 0;                         ///< 0: none; as in graph::SoftCap
  std::vector<graph::RopeTable> rope_tables{};  ///< empty: the table of config.json
};

/// Traces embed_tokens, `layer(index, x)` inside module model.layers.<index>, the final norm and lm_head (tied or not).
/// The class prefix gives the class names of a causal language model: "Llama" -> LlamaModel, LlamaDecoderLayer,
/// LlamaRMSNorm.
TracedModel causal_language_model(
    const std::string& class_prefix, const DecoderConfig& config, const Json& raw_config,
    const std::function<graph::Symbol(graph::Tracer&, std::int64_t, graph::Symbol)>& layer, const ModelEnds& ends = {});

/// x + post_attention_layernorm(attention(input_layernorm(x))), then x +
/// post_feedforward_layernorm(mlp(pre_feedforward_layernorm(x))). Without `pre_norms`, the two inner norms are omitted.
graph::Symbol post_norm_layer(graph::Tracer& tracer, const DecoderConfig& config, const std::string& class_prefix,
                              const SelfAttention& attention, bool pre_norms, graph::Symbol x);

/// The pre-norm decoder layer of Llama and similar models:
/// x + attention(norm(x)), then x + mlp(norm(x)).
graph::Symbol pre_norm_layer(graph::Tracer& tracer, const DecoderConfig& config, const std::string& class_prefix,
                             const SelfAttention& attention, bool mlp_bias, graph::Symbol x);
/// A branch of a layer: computes what is added to the layer's stream from the normalized input.
using Branch = std::function<graph::Symbol(graph::Symbol)>;
/// The same with other branches in place of the attention and the MLP.
graph::Symbol pre_norm_layer(graph::Tracer& tracer, const DecoderConfig& config, const std::string& class_prefix,
                             const Branch& attention, const Branch& mlp, graph::Symbol x);

}  // namespace layerpress::model
