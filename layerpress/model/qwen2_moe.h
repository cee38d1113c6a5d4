#pragma once

#include "layerpress/model/architecture.h"

namespace layerpress::model {

TracedModel trace_qwen2_moe(const Json& config);

}  // namespace layerpress::model
