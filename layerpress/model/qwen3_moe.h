#pragma once

#include "layerpress/model/architecture.h"

namespace layerpress::model {

TracedModel trace_qwen3_moe(const Json& config);

}  // namespace layerpress::model
