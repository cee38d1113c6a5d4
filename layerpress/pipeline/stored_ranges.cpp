#include "layerpress/pipeline/stored_ranges.h"

#include <ATen/ATen.h>

#include "layerpress/kernels/finite.h"

namespace layerpress::pipeline {
namespace {

/// "keys" for "k".
std::string word_of(const std::string& name) {
  return name == "input" ? "input" : name == "q" ? "queries" : name == "k" ? "keys" : "values";
}

/// The range of all channels of several values.
at::Tensor whole_range(const std::vector<at::Tensor>& ranges) {
  const at::Tensor all = at::cat(ranges, 1);
  return at::stack({all[0].amin(), all[1].amax()}).unsqueeze(1);
}

void require_usable(const at::Tensor& range, const std::string& module, const std::string& name) {
  if (range[0].gt(range[1]).any().item<bool>())
    throw RecipeError(
        "[pipeline.observe] no token reached {}, so the static scale of its {} is unknown; use more samples, for an "
        "expert the sequential pipeline or --moe-calibrate-all-experts, or ignore it with what runs beside it",
        module, word_of(name));
  if (!kernels::all_finite(range))
    throw RecipeError("[pipeline.observe] the {} of {} hold NaN or infinite values",
                      name == "input" ? "inputs" : word_of(name), module);
}

}  // namespace

StoredRanges::StoredRanges(const graph::Graph& graph, const compression::Assignments& assignments)
    : graph_(graph), assignments_(assignments) {
  for (const compression::StoredParameters& stored : assignments_.stored)
    for (const graph::ValueId value : *stored.values)
      wanted_[value].emplace(stored.statistic->name(), stored.statistic);
}

void StoredRanges::take(graph::ValueId value, const StatisticsStore& statistics) {
  const auto wanted = wanted_.find(value);
  if (wanted == wanted_.end() || !statistics.has(value)) return;
  for (const auto& [name, statistic] : wanted->second) {
    const at::Tensor figures = statistics.get(value).of(name);
    if (figures.defined()) ranges_[{value, name}] = statistic->range(figures);
  }
}

at::Tensor StoredRanges::common_range(const compression::StoredParameters& stored) const {
  at::Tensor common;
  for (const graph::ValueId value : *stored.values) {
    const auto found = ranges_.find({value, std::string(stored.statistic->name())});
    if (found == ranges_.end()) throw InternalError("[pipeline.observe] the range of value %{} is missing", value);
    const at::Tensor& own = found->second;
    if (common.defined() && common.size(1) != own.size(1))  // one scale for inputs of several sizes
      common = whole_range({common, own});
    else
      common = common.defined() ? at::stack({at::minimum(common[0], own[0]), at::maximum(common[1], own[1])}) : own;
  }
  return common;
}

void StoredRanges::store(const std::vector<std::size_t>& stored, ResultSink& sink) const {
  std::map<const void*, at::Tensor> common;  // by shared values
  for (const std::size_t i : stored) {
    const compression::StoredParameters& parameters = assignments_.stored[i];
    at::Tensor& range = common[parameters.values.get()];
    if (!range.defined()) range = common_range(parameters);
    const std::string& module = graph_.module_name(graph_.nodes[parameters.reader]);
    require_usable(range, module, parameters.value.name);
    for (const quant::NamedTensor& tensor : quant::parameters_of(parameters.value, range))
      sink.on_tensor(module + "." + tensor.suffix, tensor.tensor);
  }
}

}  // namespace layerpress::pipeline
