#pragma once

#include "layerpress/model/architecture.h"

namespace layerpress::model {

TracedModel trace_cohere2(const Json& config);

}  // namespace layerpress::model
