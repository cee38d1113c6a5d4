// DeepSeek V2 and V3 (R1): attention over keys and values that are expanded from a narrow latent, with one rotated part
// of the key for all heads. The first layers have dense MLPs; the others have experts and shared experts. V2 and V3
// route differently.
#include <cmath>

#include "layerpress/model/blocks/decoder_blocks.h"
#include "layerpress/model/blocks/expert_blocks.h"
#include "layerpress/model/blocks/rope.h"
#include "layerpress/model/families/families.h"

namespace layerpress::model {
namespace {

using graph::Symbol;
using graph::Tracer;

constexpr double kLatentEpsilon = 1e-6;  // for the latents' norms; the config's value is for the others

/// The values that the two versions assume for missing keys.
struct Defaults {
  std::int64_t max_position_embeddings = 0;
  ExpertConfig experts;
  std::int64_t shared_experts = 0;
  double routed_scale = 1;
};

/// Sizes of the attention; 0 if q has no latent.
struct LatentAttention {
  std::string prefix;  ///< prefix of class names
  std::int64_t q_latent = 0, kv_latent = 0;
  std::int64_t plain_dim = 0, rotated_dim = 0, value_dim = 0;
  double scale = 1;
  bool bias = false;
  bool interleaved = true;
  std::int64_t head_dim() const { return plain_dim + rotated_dim; }
};

/// 1 / sqrt(head_dim), times the square of the factor by which stretched positions (YaRN) scale queries and keys.
double score_scale(const Json& config, std::int64_t head_dim) {
  double scale = 1 / std::sqrt(static_cast<double>(head_dim));
  const Json parameters = rope_parameters(config);
  const auto kind = json_get_or<std::string>(parameters, "rope_type", kConfigFile,
                                             json_get_or<std::string>(parameters, "type", kConfigFile, "default"));
  const auto magnitude = json_get_or<double>(parameters, "mscale_all_dim", kConfigFile, 0);
  if (kind == "default" || magnitude == 0) return scale;
  const auto factor = json_get<double>(parameters, "factor", kConfigFile);
  const double grown = factor <= 1 ? 1 : 0.1 * magnitude * std::log(factor) + 1;
  return scale * grown * grown;
}

LatentAttention parse_attention(const Json& config, const std::string& prefix) {
  LatentAttention block;
  block.prefix = prefix;
  const bool no_q_latent = config.contains("q_lora_rank") && config["q_lora_rank"].is_null();
  block.q_latent = no_q_latent ? 0 : positive_number(config, "q_lora_rank", kMostFeatures, 1536);
  block.kv_latent = positive_number(config, "kv_lora_rank", kMostFeatures, 512);
  block.plain_dim = positive_number(config, "qk_nope_head_dim", kMostFeatures, 128);
  block.rotated_dim = positive_number(config, "qk_rope_head_dim", kMostFeatures, 64);
  block.value_dim = positive_number(config, "v_head_dim", kMostFeatures, 128);
  block.scale = score_scale(config, block.head_dim());
  block.bias = json_get_or<bool>(config, "attention_bias", kConfigFile, false);
  return block;
}

Symbol latent_norm(Tracer& tracer, const LatentAttention& block, const std::string& name, Symbol x) {
  return tracer.rms_norm(name, block.prefix + "RMSNorm", x, kLatentEpsilon);
}

Symbol query(Tracer& tracer, const DecoderConfig& config, const LatentAttention& block, Symbol x) {
  const std::int64_t size = config.num_heads * block.head_dim();
  if (block.q_latent == 0) return tracer.linear("q_proj", x, size);
  const Symbol latent = tracer.linear("q_a_proj", x, block.q_latent, {.bias = block.bias});
  return tracer.linear("q_b_proj", latent_norm(tracer, block, "q_a_layernorm", latent), size);
}

Symbol latent_attention(Tracer& tracer, const DecoderConfig& config, const LatentAttention& block, Symbol x) {
  const auto scope = tracer.module("self_attn", block.prefix + "Attention");
  const std::int64_t heads = config.num_heads, latent_size = block.kv_latent + block.rotated_dim;
  const std::int64_t expanded_dim = block.plain_dim + block.value_dim;
  graph::Rotary rotary{
      .head_dim = block.head_dim(), .table = 0, .offset = block.plain_dim, .interleaved = block.interleaved};
  const Symbol q = tracer.rotary(query(tracer, config, block, x), rotary);

  const Symbol compressed = tracer.linear("kv_a_proj_with_mqa", x, latent_size, {.bias = block.bias});
  const Symbol latent = tracer.slice(compressed, {.size = latent_size, .begin = 0, .end = block.kv_latent});
  const Symbol shared = tracer.slice(compressed, {.size = latent_size, .begin = block.kv_latent, .end = latent_size});
  rotary.head_dim = block.rotated_dim;
  rotary.offset = 0;
  const Symbol rotated = tracer.rotary(shared, rotary);
  const Symbol expanded =
      tracer.linear("kv_b_proj", latent_norm(tracer, block, "kv_a_layernorm", latent), heads * expanded_dim);
  const Symbol plain = tracer.slice(expanded, {.size = expanded_dim, .begin = 0, .end = block.plain_dim});
  const Symbol v = tracer.slice(expanded, {.size = expanded_dim, .begin = block.plain_dim, .end = expanded_dim});
  const Symbol k = tracer.join_heads(plain, rotated, heads);

  graph::Attention attributes{heads, heads, block.head_dim(), block.scale};
  attributes.value_head_dim = block.value_dim;
  return tracer.linear("o_proj", tracer.attention(q, k, v, attributes), config.hidden_size, {.bias = block.bias});
}

DecoderConfig parse_config(const Json& config, const Defaults& defaults) {
  DecoderConfig decoder =
      parse_decoder_config(config, {.head_dim = 64, .max_position_embeddings = defaults.max_position_embeddings});
  decoder.head_dim =
      positive_number(config, "qk_rope_head_dim", kMostFeatures, 64);  // the size that the rotary table uses
  if (json_get_or<std::int64_t>(config, "moe_layer_freq", kConfigFile, 1) != 1)
    throw CheckpointError("[model.config] config.json: moe_layer_freq is not supported; only 1 is");
  return decoder;
}

/// The experts that both versions have; the caller sets the routing.
ExpertBlock parse_experts(const Json& config, const std::string& prefix, const Defaults& defaults) {
  const ExpertConfig experts = parse_expert_config(config, defaults.experts, {.experts = "n_routed_experts"});
  ExpertBlock block;
  block.router_class_name = prefix + "TopkRouter";
  block.experts.class_name = block.shared_class_name = prefix + "MLP";
  block.intermediate_size = experts.intermediate_size;
  block.shared_name = "shared_experts";
  block.shared_intermediate_size =
      experts.intermediate_size * positive_number(config, "n_shared_experts", kMostFeatures, defaults.shared_experts);
  block.route.experts = experts.experts;
  block.route.top_k = experts.top_k;
  block.route.scale = json_get_or<double>(config, "routed_scaling_factor", kConfigFile, defaults.routed_scale);
  return block;
}

void read_groups(const Json& config, ExpertBlock& block, std::int64_t groups, std::int64_t top_groups) {
  block.route.groups = positive_number(config, "n_group", kMostFeatures, groups);
  block.route.top_groups = positive_number(config, "topk_group", kMostFeatures, top_groups);
  if (block.route.experts % block.route.groups != 0 || block.route.top_groups > block.route.groups)
    throw CheckpointError("[model.config] config.json: n_routed_experts {}, n_group {} and topk_group {} do not fit",
                          block.route.experts, block.route.groups, block.route.top_groups);
}

/// `with_bias`: the router has a tensor that is added to scores to choose experts.
TracedModel trace(const Json& config, const DecoderConfig& decoder, const LatentAttention& attention,
                  const ExpertBlock& experts, bool with_bias) {
  const std::string& prefix = attention.prefix;
  const auto first_sparse = json_get_or<std::int64_t>(config, "first_k_dense_replace", kConfigFile, with_bias ? 3 : 0);
  const auto layer = [&](Tracer& tracer, std::int64_t index, Symbol x) {
    const auto mlp = [&](Symbol inner) {
      if (index < first_sparse) return gated_mlp(tracer, decoder, prefix + "MLP", false, inner);
      ExpertBlock block = experts;
      if (with_bias) block.route.bias = tracer.full_name("mlp.gate.e_score_correction_bias");
      return expert_block(tracer, decoder, block, index, inner);
    };
    const auto mix = [&](Symbol input) { return latent_attention(tracer, decoder, attention, input); };
    return pre_norm_layer(tracer, decoder, prefix, mix, mlp, x);
  };
  TracedModel model = causal_language_model(prefix, decoder, config, layer);
  model.fused_modules = {{"mlp.gate_proj", "mlp.up_proj"},
                         {"shared_experts.gate_proj", "shared_experts.up_proj"},
                         {"self_attn.q_a_proj", "self_attn.kv_a_proj_with_mqa"}};
  return model;
}

}  // namespace

TracedModel trace_deepseek_v2(const Json& config) {
  const Defaults defaults{2048, {.experts = 64, .top_k = 0, .intermediate_size = 1407}, 2, 1};
  const DecoderConfig decoder = parse_config(config, defaults);
  if (json_get_or<bool>(config, "norm_topk_prob", kConfigFile, false) ||
      json_get_or<bool>(config, "mlp_bias", kConfigFile, false))
    throw UnknownVariantError(
        "[model.config] config.json: norm_topk_prob and mlp_bias are not supported for DeepSeek V2");
  ExpertBlock experts = parse_experts(config, "DeepseekV2", defaults);
  experts.class_name = "DeepseekV2Moe";
  const auto method = json_get_or<std::string>(config, "topk_method", kConfigFile, "greedy");
  if (method == "group_limited_greedy")
    read_groups(config, experts, 1, 1);
  else if (method != "greedy")
    throw CheckpointError(
        "[model.config] config.json: topk_method '{}' is not supported (greedy, group_limited_greedy are)", method);
  return trace(config, decoder, parse_attention(config, "DeepseekV2"), experts, /*with_bias=*/false);
}

TracedModel trace_deepseek_v3(const Json& config) {
  const Defaults defaults{4096, {.experts = 256, .top_k = 8, .intermediate_size = 2048}, 1, 2.5};
  const DecoderConfig decoder = parse_config(config, defaults);
  ExpertBlock experts = parse_experts(config, "DeepseekV3", defaults);
  experts.class_name = "DeepseekV3MoE";
  experts.route.scores = "sigmoid";
  experts.route.normalize = json_get_or<bool>(config, "norm_topk_prob", kConfigFile, true);
  experts.route.group_score = "top2";
  read_groups(config, experts, 8, 4);
  LatentAttention attention = parse_attention(config, "DeepseekV3");
  attention.interleaved = json_get_or<bool>(config, "rope_interleave", kConfigFile, true);
  return trace(config, decoder, attention, experts, /*with_bias=*/true);
}

}  // namespace layerpress::model
