// Mixtral: Mistral's attention, experts with names of their own in every layer.
#include "layerpress/model/mixtral.h"

#include "layerpress/model/decoder_blocks.h"
#include "layerpress/model/expert_blocks.h"

namespace layerpress::model {

TracedModel trace_mixtral(const Json& config) {
  DecoderConfig decoder = parse_decoder_config(config, {.num_kv_heads = 8, .max_position_embeddings = 4096 * 32});
  decoder.rms_norm_eps = json_get_or<double>(config, "rms_norm_eps", "config.json", 1e-5);
  const ExpertConfig experts =
      parse_expert_config(config, {.experts = 8, .top_k = 2, .intermediate_size = decoder.intermediate_size},
                          {.intermediate_size = "intermediate_size"});
  const SelfAttention attention{.class_name = "MixtralAttention",
                                .norm_class_name = "",
                                .window = json_get_or<std::int64_t>(config, "sliding_window", "config.json", 0)};
  ExpertBlock block;
  block.name = "block_sparse_moe";
  block.class_name = "MixtralSparseMoeBlock";
  block.router_class_name = "MixtralTopKRouter";
  block.experts = {.class_name = "MixtralBlockSparseTop2MLP", .gate = "w1", .up = "w3", .down = "w2"};
  block.intermediate_size = experts.intermediate_size;
  block.route.experts = experts.experts;
  block.route.top_k = experts.top_k;
  block.route.normalize = true;
  TracedModel model =
      causal_language_model("Mixtral", decoder, config, [&](auto& tracer, std::int64_t, graph::Symbol x) {
        return pre_norm_layer(
            tracer, decoder, "Mixtral", attention,
            [&](graph::Symbol input) { return expert_block(tracer, decoder, block, input); }, x);
      });
  describe_experts(model);
  return model;
}

}  // namespace layerpress::model
