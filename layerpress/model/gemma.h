#pragma once

#include "layerpress/model/architecture.h"

namespace layerpress::model {

TracedModel trace_gemma2(const Json& config);

/// Only the text model.
TracedModel trace_gemma3(const Json& config);

}  // namespace layerpress::model
