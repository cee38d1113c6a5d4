#pragma once

#include "layerpress/model/architecture.h"

namespace layerpress::model {

TracedModel trace_olmoe(const Json& config);

}  // namespace layerpress::model
