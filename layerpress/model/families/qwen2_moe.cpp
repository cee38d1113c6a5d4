// Qwen 1.5 and 2 with a mixture of experts: a shared expert with its own gate beside the routed experts.
#include "layerpress/model/blocks/expert_blocks.h"
#include "layerpress/model/families/families.h"

namespace layerpress::model {
namespace {

/// Without layer_types, every other layer below max_window_layers has a window, unlike in Qwen 2.
std::vector<std::int64_t> qwen2_moe_windows(const Json& config, std::int64_t num_layers) {
  const bool on = json_get_or<bool>(config, "use_sliding_window", "config.json", false);
  const auto end = json_get_or<std::int64_t>(config, "max_window_layers", "config.json", 28);
  const std::vector<bool> slides =
      sliding_layers(config, num_layers, [&](std::int64_t layer) { return on && layer % 2 == 0 && layer < end; });
  std::vector<std::int64_t> windows;
  for (const bool slide : slides) windows.push_back(on && slide ? window_size(config) : 0);
  return windows;
}

}  // namespace

TracedModel trace_qwen2_moe(const Json& config) {
  const DecoderConfig decoder = parse_decoder_config(config, {.num_kv_heads = 16, .max_position_embeddings = 32768});
  const ExpertConfig experts =
      parse_expert_config(config, {.experts = 60, .top_k = 4, .intermediate_size = 1408}, ExpertKeys());
  const bool bias = json_get_or<bool>(config, "qkv_bias", "config.json", true);
  const std::vector<std::int64_t> windows = qwen2_moe_windows(config, decoder.num_layers);
  ExpertBlock block = sparse_block("Qwen2Moe", experts);
  block.shared_class_name = "Qwen2MoeMLP";
  block.shared_intermediate_size = positive_number(config, "shared_expert_intermediate_size", kMostFeatures, 5632);
  block.shared_gate = true;
  block.route.normalize = json_get_or<bool>(config, "norm_topk_prob", "config.json", false);
  const auto attention = [&](std::int64_t layer) {
    return SelfAttention{.class_name = "Qwen2MoeAttention", .qkv_bias = bias, .window = windows[layer]};
  };
  TracedModel model =
      expert_language_model({"Qwen2Moe", decoder, block, sparse_layers(config, decoder.num_layers)}, config, attention);
  model.fused_modules.push_back({"mlp.shared_expert.gate_proj", "mlp.shared_expert.up_proj"});
  return model;
}

}  // namespace layerpress::model
