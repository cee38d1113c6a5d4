#pragma once

#include "layerpress/model/architecture.h"

namespace layerpress::model {

TracedModel trace_mistral(const Json& config);

}  // namespace layerpress::model
