// Qwen 3 with a mixture of experts: Qwen 3's attention, experts in most layers.
#include "layerpress/model/qwen3_moe.h"

#include "layerpress/model/decoder_blocks.h"
#include "layerpress/model/expert_blocks.h"

namespace layerpress::model {

TracedModel trace_qwen3_moe(const Json& config) {
  const DecoderConfig decoder = parse_decoder_config(config, {.num_kv_heads = 4, .max_position_embeddings = 32768});
  const ExpertConfig experts =
      parse_expert_config(config, {.experts = 128, .top_k = 8, .intermediate_size = 768}, ExpertKeys());
  const bool bias = json_get_or<bool>(config, "attention_bias", "config.json", false);
  const bool sliding = json_get_or<bool>(config, "use_sliding_window", "config.json", false);
  const SelfAttention attention{
      .class_name = "Qwen3MoeAttention",
      .norm_class_name = "Qwen3MoeRMSNorm",
      .qkv_bias = bias,
      .output_bias = bias,
      .window = sliding ? json_get_or<std::int64_t>(config, "sliding_window", "config.json", 4096) : 0};
  ExpertBlock block;
  block.class_name = "Qwen3MoeSparseMoeBlock";
  block.router_class_name = "Qwen3MoeTopKRouter";
  block.experts.class_name = "Qwen3MoeMLP";
  block.intermediate_size = experts.intermediate_size;
  block.route.experts = experts.experts;
  block.route.top_k = experts.top_k;
  block.route.normalize = json_get_or<bool>(config, "norm_topk_prob", "config.json", false);
  const std::vector<bool> sparse = sparse_layers(config, decoder.num_layers);
  TracedModel model =
      causal_language_model("Qwen3Moe", decoder, config, [&](auto& tracer, std::int64_t layer, graph::Symbol x) {
        if (!sparse[layer]) return pre_norm_layer(tracer, decoder, "Qwen3Moe", attention, false, x);
        return pre_norm_layer(
            tracer, decoder, "Qwen3Moe", attention,
            [&](graph::Symbol input) { return expert_block(tracer, decoder, block, input); }, x);
      });
  describe_experts(model);
  return model;
}

}  // namespace layerpress::model
