#pragma once

#include "layerpress/model/architecture.h"

namespace layerpress::model {

/// Llama 3.2 Vision. The graph's second input is the patches of images, `[patches, channels * patch_size²]`.
TracedModel trace_mllama(const Json& config);

}  // namespace layerpress::model
