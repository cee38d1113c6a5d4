#pragma once

#include <string>
#include <vector>

#include "layerpress/oneshot.h"

namespace layerpress::run {

/// The figures of `inspect --sensitivity` (inspect.h) for these schemes. Collective.
Json sensitivity(const OneshotOptions& options, const std::vector<std::string>& schemes, const RunControl& control,
                 dist::Group& group);

}  // namespace layerpress::run
