#pragma once

#include "layerpress/model/architecture.h"

namespace layerpress::model {

TracedModel trace_mixtral(const Json& config);

}  // namespace layerpress::model
