#pragma once

#include "layerpress/model/architecture.h"

namespace layerpress::model {

TracedModel trace_olmo2(const Json& config);

}  // namespace layerpress::model
