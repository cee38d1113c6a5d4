#pragma once

#include "layerpress/rewrite/rewrite.h"
#include "layerpress/setup/opening/open_model.h"

namespace layerpress::setup {

/// Makes the changes in an opened model, and adds their line to `rewrites`. A copy of a weight that is stored quantized is so, too.
void apply(const rewrite::Changes& changes, OpenedModel& model);

}  // namespace layerpress::setup
