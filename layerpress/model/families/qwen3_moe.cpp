// Qwen 3 with a mixture of experts: Qwen 3's attention, experts in most layers.
#include "layerpress/model/blocks/expert_blocks.h"
#include "layerpress/model/families/families.h"

namespace layerpress::model {

TracedModel trace_qwen3_moe(const Json& config) {
  const DecoderConfig decoder = parse_decoder_config(config, {.num_kv_heads = 4, .max_position_embeddings = 32768});
  const ExpertConfig experts =
      parse_expert_config(config, {.experts = 128, .top_k = 8, .intermediate_size = 768}, ExpertKeys());
  SelfAttention attention = configured_attention(config, "Qwen3MoeAttention", "Qwen3MoeRMSNorm");
  if (json_get_or<bool>(config, "use_sliding_window", "config.json", false))
    attention.window = json_get_or<std::int64_t>(config, "sliding_window", "config.json", 4096);
  ExpertBlock block = sparse_block("Qwen3Moe", experts);
  block.route.normalize = json_get_or<bool>(config, "norm_topk_prob", "config.json", false);
  return expert_language_model({"Qwen3Moe", decoder, block, sparse_layers(config, decoder.num_layers)}, config,
                               [&](std::int64_t) { return attention; });
}

}  // namespace layerpress::model
