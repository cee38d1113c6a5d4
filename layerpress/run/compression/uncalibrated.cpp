#include "layerpress/run/compression/uncalibrated.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>

#include "layerpress/base/text.h"

namespace layerpress::run {
namespace {

std::string reason(graph::Rows rows) {
  switch (rows) {
    case graph::Rows::kIllustrated:
    case graph::Rows::kPatches:
    case graph::Rows::kVision:
      return "no sample has images";
    case graph::Rows::kSelected:
      return "the router gave their experts no token";
    case graph::Rows::kTokens:
      break;
  }
  return "no token of the data counts";
}

/// Whether the linear's modifier measures its input.
bool is_calibrated(const setup::RunSetup& setup, graph::NodeId n, const compression::Assignment& assignment) {
  const graph::Node& node = setup.model.traced.graph.nodes[static_cast<std::size_t>(n)];
  return !node.inputs.empty() &&
         !assignment.modifier->statistics_wanted({.value = node.inputs.front(), .scheme = assignment.scheme}).empty();
}

}  // namespace

std::vector<UncalibratedLinear> uncalibrated_linears(const setup::RunSetup& setup, const Json& modules) {
  if (!setup.pipeline->takes_data) return {};
  std::set<std::string> without;
  for (const Json& module : modules)
    if (module.value("tokens", std::int64_t{0}) == 0) without.insert(module["module"].get<std::string>());
  std::vector<UncalibratedLinear> found;
  const graph::Graph& graph = setup.model.traced.graph;
  for (const auto& [n, assignment] : setup.assignments.linears) {
    const graph::Node& node = graph.nodes[static_cast<std::size_t>(n)];
    if (without.count(graph.module_name(node)) == 0 || !is_calibrated(setup, n, assignment)) continue;
    found.push_back({graph.module_name(node), reason(graph.values[node.inputs.front()].rows)});
  }
  return found;
}

std::vector<std::string> described(const std::vector<UncalibratedLinear>& linears) {
  std::map<std::string, std::vector<std::string>> by_reason;
  for (const UncalibratedLinear& linear : linears) by_reason[linear.why].push_back(linear.module);
  std::vector<std::string> lines;
  for (auto& [why, names] : by_reason) {
    const std::size_t all = names.size();
    constexpr std::size_t kShown = 3;
    names.resize(std::min(all, kShown));
    const std::string others = all > kShown ? fmt::format(" and {} more", all - kShown) : "";
    lines.push_back(fmt::format("{} {} no token in calibration and {} rounded to nearest, because {}: {}{}", all,
                                all == 1 ? "linear got" : "linears got", all == 1 ? "was" : "were", why, join(names),
                                others));
  }
  return lines;
}

}  // namespace layerpress::run
