#pragma once

#include "layerpress/model/architecture.h"

namespace layerpress::model {

/// The window of each layer according to use_sliding_window, sliding_window, max_window_layers and layer_types; shared
/// with Qwen 3.
std::vector<std::int64_t> qwen_windows(const Json& config, std::int64_t num_layers);

TracedModel trace_qwen2(const Json& config);

}  // namespace layerpress::model
