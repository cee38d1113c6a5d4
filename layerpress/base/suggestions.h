#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace layerpress {

/// "did you mean NEAREST?" (nearest_name), or "" if no candidate is near.
std::string did_you_mean(std::string_view name, const std::vector<std::string>& candidates);

/// The same; all candidates if none is near: "choose from a, b".
std::string nearest_or_all(std::string_view name, const std::vector<std::string>& candidates);

}  // namespace layerpress
