#include "layerpress/model/blocks/decoder_blocks.h"

#include <cmath>

#include "layerpress/model/blocks/rope.h"

namespace layerpress::model {

using graph::Symbol;
using graph::Tracer;

std::string norm_class(const DecoderConfig& config, const std::string& class_prefix) {
  return class_prefix + (config.norm == NormKind::kLayer ? "LayerNorm" : "RMSNorm");
}

SelfAttention configured_attention(const Json& config, const std::string& class_name,
                                   const std::string& norm_class_name) {
  const bool bias = json_get_or<bool>(config, "attention_bias", kConfigFile, false);
  return {.class_name = class_name, .norm_class_name = norm_class_name, .qkv_bias = bias, .output_bias = bias};
}

Symbol decoder_norm(Tracer& tracer, const DecoderConfig& config, const std::string& name, const std::string& class_name,
                    Symbol x, std::int64_t size) {
  if (config.norm == NormKind::kLayer)
    return tracer.layer_norm(name, class_name, x, config.rms_norm_eps, /*bias=*/false);
  return tracer.rms_norm(name, class_name, x,
                         {.weight = "",
                          .size = size,
                          .epsilon = config.rms_norm_eps,
                          .weight_offset = config.norm == NormKind::kRmsOffset ? 1.0 : 0.0,
                          .rounded_once = config.norm != NormKind::kRms});
}

Symbol self_attention(Tracer& tracer, const DecoderConfig& config, const SelfAttention& block, Symbol x) {
  const auto scope = tracer.module("self_attn", block.class_name);
  Symbol q = tracer.linear("q_proj", x, config.num_heads * config.head_dim, {.bias = block.qkv_bias});
  Symbol k = tracer.linear("k_proj", x, config.num_kv_heads * config.head_dim, {.bias = block.qkv_bias});
  const Symbol v = tracer.linear("v_proj", x, config.num_kv_heads * config.head_dim, {.bias = block.qkv_bias});
  if (!block.norm_class_name.empty()) {
    const std::int64_t size = block.norms_whole_rows ? 0 : config.head_dim;
    q = decoder_norm(tracer, config, "q_norm", block.norm_class_name, q, size);
    k = decoder_norm(tracer, config, "k_norm", block.norm_class_name, k, size);
  }
  if (block.rotates) {
    const graph::Rotary rotary{
        .head_dim = config.head_dim, .table = block.rope_table, .interleaved = block.interleaved};
    q = tracer.rotary(q, rotary);
    k = tracer.rotary(k, rotary);
  }
  const double scale = block.scale != 0 ? block.scale : 1.0 / std::sqrt(static_cast<double>(config.head_dim));
  const Symbol mixed = tracer.attention(
      q, k, v, {config.num_heads, config.num_kv_heads, config.head_dim, scale, block.window, block.soft_cap});
  return tracer.linear("o_proj", mixed, config.hidden_size, {.bias = block.output_bias});
}

Symbol gated_mlp(Tracer& tracer, const DecoderConfig& config, const std::string& class_name, bool bias, Symbol x) {
  const auto scope = tracer.module("mlp", class_name);
  const Symbol gate = tracer.linear("gate_proj", x, config.intermediate_size, {.bias = bias});
  const Symbol up = tracer.linear("up_proj", x, config.intermediate_size, {.bias = bias});
  const Symbol inner = tracer.gated_activation(config.hidden_act, gate, up);
  return tracer.linear("down_proj", inner, config.hidden_size, {.bias = bias});
}

Symbol pre_norm_layer(Tracer& tracer, const DecoderConfig& config, const std::string& class_prefix,
                      const SelfAttention& attention, bool mlp_bias, Symbol x) {
  return pre_norm_layer(
      tracer, config, class_prefix, [&](Symbol input) { return self_attention(tracer, config, attention, input); },
      [&](Symbol input) { return gated_mlp(tracer, config, class_prefix + "MLP", mlp_bias, input); }, x);
}

Symbol pre_norm_layer(Tracer& tracer, const DecoderConfig& config, const std::string& class_prefix,
                      const Branch& attention, const Branch& mlp, Symbol x) {
  const std::string norm = norm_class(config, class_prefix);
  const Symbol attention_input = decoder_norm(tracer, config, "input_layernorm", norm, x);
  x = tracer.add(x, attention(attention_input));
  const Symbol mlp_input = decoder_norm(tracer, config, "post_attention_layernorm", norm, x);
  return tracer.add(x, mlp(mlp_input));
}

Symbol post_norm_layer(Tracer& tracer, const DecoderConfig& config, const std::string& class_prefix,
                       const SelfAttention& attention, bool pre_norms, Symbol x) {
  const auto norm = [&](const char* name, Symbol y) {
    return decoder_norm(tracer, config, name, norm_class(config, class_prefix), y);
  };
  const Symbol mixed = self_attention(tracer, config, attention, pre_norms ? norm("input_layernorm", x) : x);
  x = tracer.add(x, norm("post_attention_layernorm", mixed));
  const Symbol mlp_input = pre_norms ? norm("pre_feedforward_layernorm", x) : x;
  const Symbol inner = gated_mlp(tracer, config, class_prefix + "MLP", /*bias=*/false, mlp_input);
  return tracer.add(x, norm("post_feedforward_layernorm", inner));
}

TracedModel causal_language_model(const std::string& class_prefix, const DecoderConfig& config, const Json& raw_config,
                                  const std::function<Symbol(Tracer&, std::int64_t, Symbol)>& layer,
                                  const ModelEnds& ends) {
  Tracer tracer;
  for (const graph::RopeTable& table : ends.rope_tables) tracer.add_rope_table(table);
  if (ends.rope_tables.empty()) tracer.add_rope_table(parse_rope(raw_config, config));
  Symbol x;
  {
    const auto body = tracer.module("model", class_prefix + "Model");
    x = tracer.embedding("embed_tokens", tracer.tokens(), config.vocab_size, config.hidden_size);
    if (ends.embedding_scale.factor != 1) x = tracer.scale(x, ends.embedding_scale);
    for (std::int64_t index = 0; index < config.num_layers; ++index) {
      const auto scope = tracer.module(fmt::format("layers.{}", index), class_prefix + "DecoderLayer");
      x = layer(tracer, index, x);
    }
    x = decoder_norm(tracer, config, "norm", norm_class(config, class_prefix), x);
  }
  const std::string tied = config.tie_word_embeddings ? "model.embed_tokens.weight" : "";
  x = tracer.linear("lm_head", x, config.vocab_size, {.tied_weight = tied});
  if (ends.logit_scale != 1) x = tracer.scale(x, {.factor = ends.logit_scale});
  if (ends.logit_cap > 0) x = tracer.soft_cap(x, ends.logit_cap);

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
