#include "layerpress/run/compression/filled_experts.h"

#include <fmt/format.h>

#include <set>

#include "layerpress/base/text.h"

namespace layerpress::run {
namespace {

std::string counted(std::size_t count, const char* one) {
  return fmt::format("{} {}{}", count, one, count == 1 ? "" : "s");
}

}  // namespace

std::string FilledExperts::text(std::int64_t min_tokens) const {
  return fmt::format("{} of {} had fewer than {} tokens and {} filled up", counted(experts, "expert"),
                     counted(layers, "layer"), min_tokens, experts == 1 ? "was" : "were");
}

FilledExperts filled_experts(const Json& modules) {
  std::set<std::string> experts, layers;
  for (const Json& module : modules) {
    const auto routed = module.find("routed_tokens");
    if (routed == module.end() || module["tokens"].get<std::int64_t>() <= routed->get<std::int64_t>()) continue;
    const std::string expert = parent_name(module["module"].get<std::string>());  // removes the linear's name
    experts.insert(expert);
    layers.insert(parent_name(expert));
  }
  return {experts.size(), layers.size()};
}

}  // namespace layerpress::run
