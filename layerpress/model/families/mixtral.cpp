// Mixtral: Mistral's attention, and experts with their own tensor names in every layer.
#include "layerpress/model/blocks/expert_blocks.h"
#include "layerpress/model/families/families.h"

namespace layerpress::model {

TracedModel trace_mixtral(const Json& config) {
  const DecoderConfig decoder = parse_decoder_config(
      config, {.num_kv_heads = 8, .max_position_embeddings = 4096 * 32, .epsilon = 1e-5, .rope_theta = 1e6});
  const ExpertConfig experts =
      parse_expert_config(config, {.experts = 8, .top_k = 2, .intermediate_size = decoder.intermediate_size},
                          {.intermediate_size = "intermediate_size"});
  SelfAttention attention{.class_name = "MixtralAttention",
                          .window = json_get_or<std::int64_t>(config, "sliding_window", "config.json", 0)};
  ExpertBlock block = sparse_block("Mixtral", experts);
  block.name = "block_sparse_moe";
  block.experts = {.class_name = "MixtralBlockSparseTop2MLP", .gate = "w1", .up = "w3", .down = "w2"};
  block.route.normalize = true;
  return expert_language_model({"Mixtral", decoder, block}, config, [&](std::int64_t) { return attention; });
}

}  // namespace layerpress::model
