#pragma once

#include "layerpress/model/architecture.h"

namespace layerpress::model {

TracedModel trace_phi3(const Json& config);

}  // namespace layerpress::model
