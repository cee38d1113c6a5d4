// OLMo 2: norms after attention and MLP instead of before, and q/k norms over whole rows.
#include "layerpress/model/blocks/decoder_blocks.h"
#include "layerpress/model/families/families.h"

namespace layerpress::model {

TracedModel trace_olmo2(const Json& config) {
  const DecoderConfig decoder = parse_decoder_config(config, {.norm = NormKind::kRmsRoundedOnce, .epsilon = 1e-5});
  SelfAttention attention = configured_attention(config, "Olmo2Attention", "Olmo2RMSNorm");
  attention.norms_whole_rows = true;
  return causal_language_model("Olmo2", decoder, config, [&](auto& tracer, std::int64_t, graph::Symbol x) {
    return post_norm_layer(tracer, decoder, "Olmo2", attention, /*pre_norms=*/false, x);
  });
}

}  // namespace layerpress::model
