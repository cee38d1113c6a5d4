#pragma once

#include <string>

namespace layerpress {

/// "12.3 s", "4 min 5 s", "2 h 05 min".
std::string format_duration(double seconds);

}  // namespace layerpress
