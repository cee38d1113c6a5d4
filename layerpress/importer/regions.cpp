#include "layerpress/importer/regions.h"

#include <c10/core/ScalarType.h>

#include <algorithm>

#include "layerpress/base/error.h"
#include "layerpress/kernels/program/tensor_program.h"

namespace layerpress::importer {
namespace {

constexpr std::size_t kMostOperators = 20'000, kMostInAll = 2'000'000;

std::vector<std::int64_t> inputs_of(const Lowering& lowering) {
  if (const auto* node = std::get_if<Lowered>(&lowering)) return node->inputs;
  const auto& experts = std::get<LoweredExperts>(lowering);
  return {experts.x, experts.logits, experts.routing};
}

}  // namespace

Regions::Regions(const ExportedGraph& graph, const Layouts& layouts, const Lowerings& lowered, std::int64_t output)
    : graph_(graph), layouts_(layouts), lowered_(lowered) {
  find_dependent();
  needed_.insert(output);
  std::size_t in_all = 0;
  for (auto node = graph.nodes.rbegin(); node != graph.nodes.rend(); ++node) {
    const std::int64_t value = node->out;
    if (const auto found = lowered.find(value); found != lowered.end()) {
      if (is_needed(value))
        for (const std::int64_t input : inputs_of(found->second)) needed_.insert(input);
      continue;
    }
    std::set<std::int64_t>& readers = readers_[value];
    if (readers.size() > 1 && !is_needed(value) && can_be_kept(value)) needed_.insert(value);
    if (is_needed(value)) readers = {value};
    if (readers.empty()) continue;
    for (const std::int64_t root : readers) {
      Region& region = regions_[root];
      region.root = root;
      region.nodes.push_back(&*node);
      if (region.nodes.size() > kMostOperators || ++in_all > kMostInAll)
        throw CheckpointError(
            "[importer.regions] module '{}': more than {} operators depend on values that cannot be kept; use "
            "--model-graph builtin, or report this model",
            graph.modules[node->module].first, kMostOperators);
    }
    each_value(node->arguments, [&](std::int64_t read) {
      const std::int64_t origin = layouts_.origin(read);
      if (lowered_.count(origin) != 0 && layouts_.has_rows(read))
        needed_.insert(origin);
      else if (lowered_.count(read) != 0)
        needed_.insert(read);
      else
        readers_[read].insert(readers.begin(), readers.end());
    });
  }
  for (auto& [root, region] : regions_) std::reverse(region.nodes.begin(), region.nodes.end());
}

bool Regions::can_be_kept(std::int64_t value) const {
  if (!dependent_[static_cast<std::size_t>(value)] || !layouts_.has_rows(value)) return false;
  const auto size = [](const std::string& dtype) { return c10::elementSize(kernels::dtype_of_name(dtype)); };
  const std::size_t own = size(layouts_.type(value).dtype), kept = size(graph_.dtype);
  return own % kept == 0 && layouts_.type(value).dtype.rfind("complex", 0) != 0;
}

void Regions::find_dependent() {
  dependent_.assign(graph_.types.size(), false);
  for (const ExportedNode& node : graph_.nodes) {
    bool dependent = lowered_.count(node.out) != 0;
    each_value(node.arguments, [&](std::int64_t read) {
      dependent = dependent || read == graph_.token_ids || dependent_[static_cast<std::size_t>(read)];
    });
    dependent_[static_cast<std::size_t>(node.out)] = dependent;
  }
}

std::int64_t Regions::outside(std::int64_t value, const Region& region) const {
  const std::int64_t origin = layouts_.origin(value);
  if (lowered_.count(origin) != 0 && layouts_.has_rows(value)) return origin;
  if (lowered_.count(value) != 0) return value;
  return value != region.root && regions_.count(value) != 0 ? value : -1;
}

}  // namespace layerpress::importer
