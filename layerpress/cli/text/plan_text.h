#pragma once

#include <string>

#include "layerpress/base/json.h"

namespace layerpress::cli {

/// A plan (see plan_oneshot) as a readable table.
std::string plan_text(const Json& plan);

}  // namespace layerpress::cli
