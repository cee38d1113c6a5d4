// OLMoE: norms of q and k over whole rows, experts in every layer.
#include "layerpress/model/olmoe.h"

#include "layerpress/model/decoder_blocks.h"
#include "layerpress/model/expert_blocks.h"

namespace layerpress::model {

TracedModel trace_olmoe(const Json& config) {
  DecoderConfig decoder = parse_decoder_config(config, {.max_position_embeddings = 4096});
  decoder.rms_norm_eps = json_get_or<double>(config, "rms_norm_eps", "config.json", 1e-5);
  if (config.contains("clip_qkv") && !config["clip_qkv"].is_null())
    throw CheckpointError("[model.config] config.json: 'clip_qkv' is not supported; OLMoE models with null are");
  const ExpertConfig experts =
      parse_expert_config(config, {.experts = 64, .top_k = 8, .intermediate_size = decoder.intermediate_size},
                          {.intermediate_size = "intermediate_size"});
  const bool bias = json_get_or<bool>(config, "attention_bias", "config.json", false);
  const SelfAttention attention{.class_name = "OlmoeAttention",
                                .norm_class_name = "OlmoeRMSNorm",
                                .qkv_bias = bias,
                                .output_bias = bias,
                                .norms_whole_rows = true};
  ExpertBlock block;
  block.class_name = "OlmoeSparseMoeBlock";
  block.router_class_name = "OlmoeTopKRouter";
  block.experts.class_name = "OlmoeMLP";
  block.intermediate_size = experts.intermediate_size;
  block.route.experts = experts.experts;
  block.route.top_k = experts.top_k;
  block.route.normalize = json_get_or<bool>(config, "norm_topk_prob", "config.json", false);
  TracedModel model = causal_language_model("Olmoe", decoder, config, [&](auto& tracer, std::int64_t, graph::Symbol x) {
    return pre_norm_layer(
        tracer, decoder, "Olmoe", attention,
        [&](graph::Symbol input) { return expert_block(tracer, decoder, block, input); }, x);
  });
  describe_experts(model);
  return model;
}

}  // namespace layerpress::model
