// Qwen 1.5 and 2 with a mixture of experts: a shared expert with a gate of its own beside the routed ones.
#include "layerpress/model/qwen2_moe.h"

#include "layerpress/model/decoder_blocks.h"
#include "layerpress/model/expert_blocks.h"
#include "layerpress/model/qwen2.h"

namespace layerpress::model {

TracedModel trace_qwen2_moe(const Json& config) {
  const DecoderConfig decoder = parse_decoder_config(config, {.num_kv_heads = 16, .max_position_embeddings = 32768});
  const ExpertConfig experts =
      parse_expert_config(config, {.experts = 60, .top_k = 4, .intermediate_size = 1408}, ExpertKeys());
  const bool bias = json_get_or<bool>(config, "qkv_bias", "config.json", true);
  const std::vector<std::int64_t> windows = qwen_windows(config, decoder.num_layers);
  ExpertBlock block;
  block.class_name = "Qwen2MoeSparseMoeBlock";
  block.router_class_name = "Qwen2MoeTopKRouter";
  block.experts.class_name = block.shared_class_name = "Qwen2MoeMLP";
  block.intermediate_size = experts.intermediate_size;
  block.shared_intermediate_size =
      json_get_or<std::int64_t>(config, "shared_expert_intermediate_size", "config.json", 5632);
  if (block.shared_intermediate_size <= 0 || block.shared_intermediate_size > (1 << 24))
    throw CheckpointError("[model.config] config.json: 'shared_expert_intermediate_size' is {}",
                          block.shared_intermediate_size);
  block.shared_gate = true;
  block.route.experts = experts.experts;
  block.route.top_k = experts.top_k;
  block.route.normalize = json_get_or<bool>(config, "norm_topk_prob", "config.json", false);
  const std::vector<bool> sparse = sparse_layers(config, decoder.num_layers);
  TracedModel model =
      causal_language_model("Qwen2Moe", decoder, config, [&](auto& tracer, std::int64_t layer, graph::Symbol x) {
        const SelfAttention attention{
            .class_name = "Qwen2MoeAttention", .norm_class_name = "", .qkv_bias = bias, .window = windows[layer]};
        if (!sparse[layer]) return pre_norm_layer(tracer, decoder, "Qwen2Moe", attention, false, x);
        return pre_norm_layer(
            tracer, decoder, "Qwen2Moe", attention,
            [&](graph::Symbol input) { return expert_block(tracer, decoder, block, input); }, x);
      });
  describe_experts(model);
  model.fused_modules.push_back({"mlp.shared_expert.gate_proj", "mlp.shared_expert.up_proj"});
  return model;
}

}  // namespace layerpress::model
