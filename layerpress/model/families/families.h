#pragma once

#include <cstdint>
#include <vector>

#include "layerpress/base/json.h"
#include "layerpress/model/blocks/architecture.h"

namespace layerpress::model {

// Each function traces one architecture's forward pass from config.json, in a source file of its own. It throws
// CheckpointError for a config that it cannot follow exactly.
TracedModel trace_cohere2(const Json& config);
TracedModel trace_deepseek_v2(const Json& config);
TracedModel trace_deepseek_v3(const Json& config);
TracedModel trace_gemma2(const Json& config);
/// Only the text model.
TracedModel trace_gemma3(const Json& config);
TracedModel trace_granite(const Json& config);
TracedModel trace_llama(const Json& config);
TracedModel trace_mistral(const Json& config);
TracedModel trace_mixtral(const Json& config);
/// Llama 3.2 Vision. The graph's second input is the patches of images, `[patches, channels * patch_size²]`.
TracedModel trace_mllama(const Json& config);
TracedModel trace_olmo2(const Json& config);
TracedModel trace_olmoe(const Json& config);
TracedModel trace_phi3(const Json& config);
TracedModel trace_qwen2(const Json& config);
TracedModel trace_qwen2_moe(const Json& config);
TracedModel trace_qwen3(const Json& config);
TracedModel trace_qwen3_moe(const Json& config);
TracedModel trace_smollm3(const Json& config);

/// The window of each layer according to use_sliding_window, sliding_window, max_window_layers and layer_types, in Qwen 2
/// and 3.
std::vector<std::int64_t> qwen_windows(const Json& config, std::int64_t num_layers);

}  // namespace layerpress::model
