#pragma once

#include <string>

#include "layerpress/base/json.h"

namespace layerpress::cli {

/// The figures of `inspect --sensitivity` as tables of at most 80 columns: every module, then every scheme. Of modules that differ
/// only in the number of an expert, one line shows the greatest errors.
std::string sensitivity_text(const Json& figures);

}  // namespace layerpress::cli
