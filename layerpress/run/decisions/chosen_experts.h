#pragma once

#include "layerpress/run/decisions/decisions.h"

namespace layerpress::run {

/// Which experts stay (modifier::ExpertPruning), by what they contribute.
Decision experts_decision();

}  // namespace layerpress::run
