#pragma once

#include "layerpress/model/architecture.h"

namespace layerpress::model {

TracedModel trace_deepseek_v2(const Json& config);
TracedModel trace_deepseek_v3(const Json& config);

}  // namespace layerpress::model
