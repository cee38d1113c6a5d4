// Gemma 2 and 3 (text): norms with 1 + weight before and after attention and MLP, scaled embeddings, sliding windows in
// all but every n-th layer. Gemma 2 caps scores and logits; Gemma 3 has q/k norms and a rotary table per kind of layer.
#include <cmath>

#include "layerpress/model/blocks/decoder_blocks.h"
#include "layerpress/model/blocks/rope.h"
#include "layerpress/model/families/families.h"

namespace layerpress::model {
namespace {

DecoderConfig gemma_config(const Json& config, std::int64_t max_position_embeddings) {
  if (json_get_or<bool>(config, "use_bidirectional_attention", kConfigFile, false))
    throw CheckpointError(
        "[model.config] config.json: use_bidirectional_attention is not supported; only causal language models are");
  return parse_decoder_config(config, {.num_kv_heads = 4,
                                       .head_dim = 256,
                                       .max_position_embeddings = max_position_embeddings,
                                       .tie_word_embeddings = true,
                                       .norm = NormKind::kRmsOffset,
                                       .activation_key = "hidden_activation",
                                       .activation = "gelu_pytorch_tanh"});
}

SelfAttention gemma_attention(const Json& config, const std::string& class_name) {
  SelfAttention attention = configured_attention(config, class_name);
  const auto scalar = json_get_or<double>(config, "query_pre_attn_scalar", kConfigFile, 256);
  if (!(scalar > 0))
    throw CheckpointError("[model.config] config.json: query_pre_attn_scalar {} is not positive", scalar);
  attention.scale = 1 / std::sqrt(scalar);
  return attention;
}

ModelEnds gemma_ends(const DecoderConfig& decoder, double logit_cap) {
  const double scale = std::sqrt(static_cast<double>(decoder.hidden_size));
  return {.embedding_scale = {.factor = scale, .rounded_factor = true}, .logit_cap = logit_cap};
}

/// The rotary table of one kind of layer: its entry in rope_parameters (transformers 5), or the earlier keys.
graph::RopeTable layer_rope(const Json& config, DecoderConfig decoder, bool slides) {
  const char* kind = slides ? "sliding_attention" : "full_attention";
  Json parameters = Json::object();
  const auto all = config.find("rope_parameters");
  if (all != config.end() && all->is_object() && all->contains(kind) && !(*all)[kind].is_null())
    parameters = (*all)[kind];
  const auto scaling = config.find("rope_scaling");
  if (!slides && scaling != config.end() && !scaling->is_null()) parameters.update(*scaling);
  decoder.rope_theta = json_get_or<double>(config, slides ? "rope_local_base_freq" : "rope_theta", kConfigFile,
                                           slides ? 10'000 : 1'000'000);
  return parse_rope({{"rope_parameters", parameters}}, decoder);
}

}  // namespace

TracedModel trace_gemma2(const Json& config) {
  const DecoderConfig decoder = gemma_config(config, 8192);
  const std::int64_t window = window_size(config);
  const std::vector<bool> sliding =
      sliding_layers(config, decoder.num_layers, [](std::int64_t layer) { return layer % 2 == 0; });
  SelfAttention attention = gemma_attention(config, "Gemma2Attention");
  attention.soft_cap = soft_cap(config, "attn_logit_softcapping", 50);
  const auto layer = [&](graph::Tracer& tracer, std::int64_t index, graph::Symbol x) {
    attention.window = sliding[index] ? window : 0;
    return post_norm_layer(tracer, decoder, "Gemma2", attention, /*pre_norms=*/true, x);
  };
  const double logit_cap = soft_cap(config, "final_logit_softcapping", 30);
  return causal_language_model("Gemma2", decoder, config, layer, gemma_ends(decoder, logit_cap));
}

TracedModel trace_gemma3(const Json& config) {
  const DecoderConfig decoder = gemma_config(config, 131'072);
  const std::int64_t window = window_size(config);
  const auto pattern = json_get_or<std::int64_t>(config, "sliding_window_pattern", kConfigFile, 6);
  if (pattern < 1)
    throw CheckpointError("[model.config] config.json: sliding_window_pattern {} is not positive", pattern);
  const std::vector<bool> sliding =
      sliding_layers(config, decoder.num_layers, [&](std::int64_t layer) { return (layer + 1) % pattern != 0; });
  SelfAttention attention = gemma_attention(config, "Gemma3Attention");
  attention.norm_class_name = "Gemma3RMSNorm";
  const auto layer = [&](graph::Tracer& tracer, std::int64_t index, graph::Symbol x) {
    attention.window = sliding[index] ? window : 0;
    attention.rope_table = sliding[index] ? 1 : 0;
    return post_norm_layer(tracer, decoder, "Gemma3", attention, /*pre_norms=*/true, x);
  };
  ModelEnds ends = gemma_ends(decoder, soft_cap(config, "final_logit_softcapping", 0));
  ends.rope_tables = {layer_rope(config, decoder, false), layer_rope(config, decoder, true)};
  return causal_language_model("Gemma3", decoder, config, layer, ends);
}

}  // namespace layerpress::model
