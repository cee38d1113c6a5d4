#pragma once

#include <string>

#include "layerpress/base/json.h"

namespace layerpress::cli {

/// A plan (see plan_oneshot) as a table for people.
std::string plan_text(const Json& plan);

}  // namespace layerpress::cli
