// OLMoE: q/k norms over whole rows, experts in every layer.
#include "layerpress/model/blocks/expert_blocks.h"
#include "layerpress/model/families/families.h"

namespace layerpress::model {

TracedModel trace_olmoe(const Json& config) {
  const DecoderConfig decoder = parse_decoder_config(config, {.max_position_embeddings = 4096, .epsilon = 1e-5});
  if (json_has(config, "clip_qkv"))
    throw UnknownVariantError("[model.config] config.json: 'clip_qkv' is not supported");
  const ExpertConfig experts =
      parse_expert_config(config, {.experts = 64, .top_k = 8, .intermediate_size = decoder.intermediate_size},
                          {.intermediate_size = "intermediate_size"});
  SelfAttention attention = configured_attention(config, "OlmoeAttention", "OlmoeRMSNorm");
  attention.norms_whole_rows = true;
  ExpertBlock block = sparse_block("Olmoe", experts);
  block.route.normalize = json_get_or<bool>(config, "norm_topk_prob", "config.json", false);
  return expert_language_model({"Olmoe", decoder, block}, config, [&](std::int64_t) { return attention; });
}

}  // namespace layerpress::model
