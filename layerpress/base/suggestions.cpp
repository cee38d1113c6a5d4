#include "layerpress/base/suggestions.h"

#include <fmt/format.h>

#include "layerpress/base/text.h"

namespace layerpress {

std::string did_you_mean(std::string_view name, const std::vector<std::string>& candidates) {
  const std::string nearest = nearest_name(name, candidates);
  return nearest.empty() ? "" : fmt::format("did you mean {}?", nearest);
}

std::string nearest_or_all(std::string_view name, const std::vector<std::string>& candidates) {
  const std::string nearest = did_you_mean(name, candidates);
  return nearest.empty() ? "choose from " + join(candidates) : nearest;
}

}  // namespace layerpress
