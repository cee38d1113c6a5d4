#pragma once

#include "layerpress/model/architecture.h"

namespace layerpress::model {

TracedModel trace_granite(const Json& config);

}  // namespace layerpress::model
