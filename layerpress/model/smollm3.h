#pragma once

#include "layerpress/model/architecture.h"

namespace layerpress::model {

TracedModel trace_smollm3(const Json& config);

}  // namespace layerpress::model
