#include "layerpress/model/decoder_blocks.h"

#include <cmath>

#include "layerpress/model/rope.h"

namespace layerpress::model {

using graph::Symbol;
using graph::Tracer;

Symbol self_attention(Tracer& tracer, const DecoderConfig& config, const SelfAttention& block, Symbol x) {
  const auto scope = tracer.module("self_attn", block.class_name);
  Symbol q =
      tracer.linear("q_proj", x, config.num_heads * config.head_dim, {.bias = block.qkv_bias, .tied_weight = ""});
  Symbol k =
      tracer.linear("k_proj", x, config.num_kv_heads * config.head_dim, {.bias = block.qkv_bias, .tied_weight = ""});
  const Symbol v =
      tracer.linear("v_proj", x, config.num_kv_heads * config.head_dim, {.bias = block.qkv_bias, .tied_weight = ""});
  if (!block.norm_class_name.empty()) {
    q = tracer.rms_norm("q_norm", block.norm_class_name, q, config.rms_norm_eps, config.head_dim);
    k = tracer.rms_norm("k_norm", block.norm_class_name, k, config.rms_norm_eps, config.head_dim);
  }
  q = tracer.rotary(q, config.head_dim, block.rope_table);
  k = tracer.rotary(k, config.head_dim, block.rope_table);
  const double scale = 1.0 / std::sqrt(static_cast<double>(config.head_dim));
  const Symbol mixed =
      tracer.attention(q, k, v, {config.num_heads, config.num_kv_heads, config.head_dim, scale, block.window});
  return tracer.linear("o_proj", mixed, config.hidden_size, {.bias = block.output_bias, .tied_weight = ""});
}

Symbol gated_mlp(Tracer& tracer, const DecoderConfig& config, const std::string& class_name, bool bias, Symbol x) {
  const auto scope = tracer.module("mlp", class_name);
  const Symbol gate = tracer.linear("gate_proj", x, config.intermediate_size, {.bias = bias, .tied_weight = ""});
  const Symbol up = tracer.linear("up_proj", x, config.intermediate_size, {.bias = bias, .tied_weight = ""});
  const Symbol inner = tracer.gated_activation(config.hidden_act, gate, up);
  return tracer.linear("down_proj", inner, config.hidden_size, {.bias = bias, .tied_weight = ""});
}

Symbol pre_norm_layer(Tracer& tracer, const DecoderConfig& config, const std::string& class_prefix,
                      const SelfAttention& attention, bool mlp_bias, Symbol x) {
  const std::string norm_class = class_prefix + "RMSNorm";
  const Symbol attention_input = tracer.rms_norm("input_layernorm", norm_class, x, config.rms_norm_eps);
  x = tracer.add(x, self_attention(tracer, config, attention, attention_input));
  const Symbol mlp_input = tracer.rms_norm("post_attention_layernorm", norm_class, x, config.rms_norm_eps);
  return tracer.add(x, gated_mlp(tracer, config, class_prefix + "MLP", mlp_bias, mlp_input));
}

TracedModel causal_language_model(const std::string& class_prefix, const DecoderConfig& config, const Json& raw_config,
                                  const std::function<Symbol(Tracer&, std::int64_t, Symbol)>& layer) {
  Tracer tracer;
  tracer.add_rope_table(parse_rope(raw_config, config));
  Symbol x;
  {
    const auto body = tracer.module("model", class_prefix + "Model");
    x = tracer.embedding("embed_tokens", tracer.tokens(), config.vocab_size, config.hidden_size);
    for (std::int64_t index = 0; index < config.num_layers; ++index) {
      const auto scope = tracer.module(fmt::format("layers.{}", index), class_prefix + "DecoderLayer");
      x = layer(tracer, index, x);
    }
    x = tracer.rms_norm("norm", class_prefix + "RMSNorm", x, config.rms_norm_eps);
  }
  const std::string tied = config.tie_word_embeddings ? "model.embed_tokens.weight" : "";
  x = tracer.linear("lm_head", x, config.vocab_size, {.bias = false, .tied_weight = tied});

  TracedModel model;
  model.graph = tracer.finish(x);
  model.vocab_size = config.vocab_size;
  model.max_position_embeddings = config.max_position_embeddings;
  model.tied_head = config.tie_word_embeddings;
  model.default_sequential_targets = {class_prefix + "DecoderLayer"};
  model.fused_modules = {{"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"},
                         {"mlp.gate_proj", "mlp.up_proj"}};
  return model;
}

}  // namespace layerpress::model
