// Qwen 2 and 3, dense and with experts, and the text parts of their models for images; Qwen 3 Next and 3.5, most of whose layers have
// a gated delta rule in place of attention.
#include <algorithm>
#include <utility>

#include "layerpress/gguf/architectures/decoder_architecture.h"
#include "layerpress/gguf/architectures/families.h"

namespace layerpress::gguf {
namespace {

void qwen_layer_names(DecoderArchitecture& made) {
  made.rope_scaling_keys();
  if (made.config().flag("use_sliding_window", false)) made.end_context_at_window();
  made.layer("input_layernorm", "attn_norm");
  made.attention_names();
  made.layer("post_attention_layernorm", "ffn_norm");
}

void head_norm_names(DecoderArchitecture& made) {
  made.layer("self_attn.q_norm", "attn_q_norm");
  made.layer("self_attn.k_norm", "attn_k_norm");
}

void expert_layers(DecoderArchitecture& made, std::uint32_t experts, std::uint32_t used) {
  made.expert_keys("num_experts", experts, used);
  const std::uint32_t width = made.count("expert_feed_forward_length", "moe_intermediate_size");
  made.layer("mlp.gate", "ffn_gate_inp");
  made.expert_names("mlp", width);
}

/// Experts in every layer.
void all_expert_layers(DecoderArchitecture& made, std::uint32_t experts, std::uint32_t used) {
  const ModelConfig& config = made.config();
  expert_layers(made, experts, used);
  config.require(config.count("decoder_sparse_step", 1) == 1, "decoder_sparse_step", "has experts in every layer");
  config.require(config.list("mlp_only_layers").empty(), "mlp_only_layers", "has experts in every layer");
}

void qwen_experts(DecoderArchitecture& made, std::uint32_t experts, std::uint32_t used, bool normalized) {
  ModelConfig& config = made.config();
  all_expert_layers(made, experts, used);
  config.state("norm_topk_prob", normalized);
  config.require(
      config.flag("norm_topk_prob", false) == normalized, "norm_topk_prob",
      normalized ? "makes the weights of the chosen experts add up to 1" : "takes the weights of experts as they are");
}

void shared_expert(DecoderArchitecture& made) {
  made.count("expert_shared_feed_forward_length", "shared_expert_intermediate_size");
  made.layer("mlp.shared_expert_gate", "ffn_gate_inp_shexp");
  for (const std::string part : {"gate", "up", "down"})
    made.layer("mlp.shared_expert." + part + "_proj", "ffn_" + part + "_shexp");
}

/// Which layers have attention: each `interval`-th.
void attention_interval(DecoderArchitecture& made) {
  const char* key = "full_attention_interval";
  const auto kind = [](std::int64_t layer, std::int64_t interval) {
    return (layer + 1) % interval == 0 ? "full_attention" : "linear_attention";
  };
  ModelConfig& config = made.config();
  if (made.reads(key)) config.take(key, key);
  std::int64_t interval = config.count(key, 4);
  if (config.file() != nullptr) {
    Json kinds = Json::array();
    for (std::int64_t layer = 0; layer < made.layers(); ++layer) kinds.push_back(kind(layer, interval));
    config.state("layer_types", std::move(kinds));
  }
  if (const std::vector<std::string> kinds = config.texts("layer_types"); !kinds.empty()) {
    interval = std::find(kinds.begin(), kinds.end(), "full_attention") - kinds.begin() + 1;
    bool regular = static_cast<std::int64_t>(kinds.size()) == made.layers();
    for (std::int64_t layer = 0; regular && layer < made.layers(); ++layer)
      regular = kinds[static_cast<std::size_t>(layer)] == kind(layer, interval);
    config.require(regular, "layer_types", "has full attention at equal intervals, and linear attention between");
  }
  // It aborts without layers of one kind.
  config.require(interval > 1 && interval <= made.layers(), "layer_types",
                 "has layers with full and with linear attention");
  made.set(key, static_cast<std::uint32_t>(interval));
}

DecoderTraits hybrid_traits(const char* name, std::uint32_t kv_heads) {
  return {.name = name, .kv_heads = kv_heads, .head_dim = 256, .context = 32768, .rope = {10000, 0.25}};
}

struct DeltaRule {
  std::int64_t keys = 1, values = 1, size = 1;  ///< heads of keys and of values, and the features of each
};

DeltaRule delta_rule_keys(DecoderArchitecture& made) {
  ModelConfig& config = made.config();
  made.count("ssm.conv_kernel", "linear_conv_kernel_dim", 4);
  const std::uint32_t size = made.count("ssm.state_size", "linear_key_head_dim", 128);
  const std::uint32_t keys = made.count("ssm.group_count", "linear_num_key_heads", 16);
  const std::uint32_t values = made.count("ssm.time_step_rank", "linear_num_value_heads", 32);
  config.state("linear_value_head_dim", size);
  config.require(config.count("linear_value_head_dim", 128) == size, "linear_value_head_dim",
                 "has values as wide as keys in linear attention");
  config.require((std::uint64_t{values} + 2 * std::uint64_t{keys}) * size < 1U << 31, "linear_num_value_heads",
                 "has fewer than 2^31 values");
  config.require(values % keys == 0, "linear_num_value_heads", "has equally many heads of values for each key");
  made.set("ssm.inner_size", values * size);
  return {keys, values, size};
}

/// The names that Qwen 3 Next and 3.5 have in common.
void delta_rule_names(DecoderArchitecture& made, const TiledHeads& heads, const TiledHeads& heads_behind_keys) {
  made.layer("linear_attn.conv1d", {.name = "ssm_conv1d", .tiled_rows = heads_behind_keys, .squeezed = true});
  made.layer("linear_attn.A_log", {.name = "ssm_a", .tiled_rows = heads, .negative_exponential = true});
  made.layer("linear_attn.dt_bias", {.name = "ssm_dt.bias", .tiled_rows = heads});
  made.layer("linear_attn.norm", "ssm_norm");
  made.layer("linear_attn.out_proj", {.name = "ssm_out", .tiled_columns = heads});
}

/// Everything about layers with attention or a delta rule but the delta rule itself and the MLPs.
void hybrid_layers(DecoderArchitecture& made) {
  made.rope_scaling_keys();
  made.rotated_part_key();
  attention_interval(made);
  for (const auto& [module, tensor] : {std::pair{"input_layernorm", "attn_norm"},
                                       {"post_attention_layernorm", "post_attention_norm"},
                                       {"self_attn.q_norm", "attn_q_norm"},
                                       {"self_attn.k_norm", "attn_k_norm"}})
    made.layer(module, TensorPlace{.name = tensor, .added = 1});
  made.names().set_added("model.norm", 1);
  made.attention_names();
}

void qwen35_layers(DecoderArchitecture& made) {
  hybrid_layers(made);
  made.rope_axes_key({11, 11, 10}, /*interleaved=*/true);
  const DeltaRule rule = delta_rule_keys(made);
  TiledHeads heads, behind_keys;
  if (rule.keys > 1 && rule.values > rule.keys) {
    heads = {.keys = rule.keys, .of_key = rule.values / rule.keys};
    behind_keys = {.keys = heads.keys, .of_key = heads.of_key, .first = 2 * rule.keys * rule.size};
  }
  delta_rule_names(made, heads, behind_keys);
  made.layer("linear_attn.in_proj_qkv", {.name = "attn_qkv", .tiled_rows = behind_keys});
  made.layer("linear_attn.in_proj_z", {.name = "attn_gate", .tiled_rows = heads});
  made.layer("linear_attn.in_proj_a", {.name = "ssm_alpha", .tiled_rows = heads});
  made.layer("linear_attn.in_proj_b", {.name = "ssm_beta", .tiled_rows = heads});
}

/// How many of the text's first layers get features of layers of the vision part added.
void deepstack_key(DecoderArchitecture& made) {
  const ModelConfig vision(made.config().object("vision_config"));
  const Json layers =
      vision.given("deepstack_visual_indexes") ? vision.list("deepstack_visual_indexes") : Json({8, 16, 24});
  made.set("n_deepstack_layers", static_cast<std::uint32_t>(layers.size()));
}

}  // namespace

Architecture qwen2_architecture(ModelConfig& config) {
  DecoderArchitecture made(config, {.name = "qwen2", .context = 32768, .own_head_dim = false});
  qwen_layer_names(made);
  made.mlp_names();
  return made.take();
}

Architecture qwen2moe_architecture(ModelConfig& config) {
  DecoderArchitecture made(config, {.name = "qwen2moe", .context = 32768, .needs_output = true, .own_head_dim = false});
  qwen_layer_names(made);
  qwen_experts(made, 60, 4, /*normalized=*/false);
  shared_expert(made);
  return made.take();
}

Architecture qwen3_architecture(ModelConfig& config) {
  DecoderArchitecture made(config, {.name = "qwen3", .head_dim = 128, .context = 32768});
  qwen_layer_names(made);
  head_norm_names(made);
  made.mlp_names();
  made.read_scales({"ffn_gate", "ffn_up", "ffn_down"});
  return made.take();
}

Architecture qwen3moe_architecture(ModelConfig& config) {
  DecoderArchitecture made(config, {.name = "qwen3moe", .kv_heads = 4, .context = 32768});
  qwen_layer_names(made);
  head_norm_names(made);
  qwen_experts(made, 128, 8, /*normalized=*/true);
  made.read_scales({"ffn_gate_exps", "ffn_up_exps", "ffn_down_exps"});
  return made.take();
}

Architecture qwen2vl_architecture(ModelConfig& config) {
  DecoderTraits traits{.name = "qwen2vl", .kv_heads = 8, .context = 32768, .own_head_dim = false};
  traits.rope.theta = 1000000;
  DecoderArchitecture made(config, traits);
  qwen_layer_names(made);
  made.mlp_names();
  made.rope_axes_key({16, 24, 24}, /*interleaved=*/false);
  return made.take();
}

Architecture qwen3vl_architecture(ModelConfig& config) {
  DecoderTraits traits{.name = "qwen3vl", .kv_heads = 32, .head_dim = 128, .context = 128000};
  traits.rope.theta = 500000;
  DecoderArchitecture made(config, traits);
  qwen_layer_names(made);
  head_norm_names(made);
  made.mlp_names();
  made.rope_axes_key({24, 20, 20}, /*interleaved=*/true);
  deepstack_key(made);
  return made.take();
}

Architecture qwen3vlmoe_architecture(ModelConfig& config) {
  DecoderTraits traits{.name = "qwen3vlmoe", .kv_heads = 16, .context = 128000};
  traits.rope.theta = 500000;
  DecoderArchitecture made(config, traits);
  qwen_layer_names(made);
  head_norm_names(made);
  all_expert_layers(made, 60, 4);  // whose chosen weights add up to 1 always
  made.rope_axes_key({24, 20, 20}, /*interleaved=*/true);
  deepstack_key(made);
  return made.take();
}

Architecture qwen3next_architecture(ModelConfig& config) {
  DecoderArchitecture made(config, hybrid_traits("qwen3next", 2));
  hybrid_layers(made);
  delta_rule_keys(made);
  delta_rule_names(made, {}, {});
  made.layer("linear_attn.in_proj_qkvz", "ssm_in");
  made.layer("linear_attn.in_proj_ba", "ssm_ba");
  qwen_experts(made, 512, 10, /*normalized=*/true);
  shared_expert(made);
  return made.take();
}

Architecture qwen35_architecture(ModelConfig& config) {
  DecoderTraits traits = hybrid_traits("qwen35", 4);
  traits.rope.by_axes = true;
  DecoderArchitecture made(config, traits);
  qwen35_layers(made);
  made.mlp_names();
  return made.take();
}

Architecture qwen35moe_architecture(ModelConfig& config) {
  DecoderTraits traits = hybrid_traits("qwen35moe", 2);
  traits.rope.by_axes = true;
  traits.width_key = nullptr;
  DecoderArchitecture made(config, traits);
  qwen35_layers(made);
  expert_layers(made, 256, 8);
  shared_expert(made);
  return made.take();
}

}  // namespace layerpress::gguf
