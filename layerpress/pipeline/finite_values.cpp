#include "layerpress/pipeline/finite_values.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <string>

#include "layerpress/base/error.h"
#include "layerpress/kernels/finite.h"
#include "layerpress/pipeline/statistics_store.h"

namespace layerpress::pipeline {
namespace {

/// A module that reads the value, or the one that made it.
std::string reader_of(const graph::Graph& graph, graph::ValueId value) {
  for (const graph::Node& node : graph.nodes)
    if (std::find(node.inputs.begin(), node.inputs.end(), value) != node.inputs.end())
      return "the input of " + graph.module_name(node);
  for (const graph::Node& node : graph.nodes)
    if (node.output == value) return "the output of " + graph.module_name(node);
  return fmt::format("value %{}", value);
}

/// "sample 5 (from 1)", or those of the batch where rows do not tell.
std::string samples_of(const execution::RunContext& run, graph::ValueId value, const at::Tensor& values,
                       const execution::Batch& batch) {
  const auto [first, last] = std::minmax_element(batch.places.begin(), batch.places.end());
  if (first == batch.places.end()) return "a sample";
  const compression::SampleRows rows = sample_rows(run, batch, run.graph.values[value].rows);
  if (rows.offsets.back() != values.size(0))
    return fmt::format("one of the samples {} to {} (from 1)", *first + 1, *last + 1);
  for (std::size_t i = 0; i < batch.places.size(); ++i)
    if (!kernels::all_finite(values.slice(0, rows.offsets[i], rows.offsets[i + 1])))
      return fmt::format("sample {} (from 1)", batch.places[i] + 1);
  return "a sample";
}

[[noreturn]] void refuse(const std::string& what, const std::string& where) {
  throw DataError(
      "[pipeline.observe] {}: {} holds NaN or infinite values; check the model with `layerpress verify`, use --dtype "
      "fp32 if its "
      "values are too large for its own dtype, or leave the sample out",
      where, what);
}

}  // namespace

void FiniteValues::check(graph::ValueId value, const at::Tensor& rows, const execution::BatchPiece& piece) {
  if (!rows.is_cpu()) {
    const at::Tensor greatest = kernels::magnitude_on_device(rows);
    at::Tensor& all = greatest_[value];
    all = all.defined() ? at::maximum(all, greatest) : greatest;
  } else if (!kernels::all_finite(rows)) {
    refuse(reader_of(run_.graph, value), samples_of(run_, value, rows, piece.batch));
  }
}

void FiniteValues::finish() {
  std::vector<at::Tensor> answers;
  for (const auto& [value, greatest] : greatest_) answers.push_back(greatest.isfinite());
  if (answers.empty()) return;
  const at::Tensor finite = at::stack(answers).cpu();
  std::size_t place = 0;
  for (const auto& [value, greatest] : greatest_)
    if (!finite[static_cast<std::int64_t>(place++)].item<bool>()) refuse(reader_of(run_.graph, value), "a sample");
}

}  // namespace layerpress::pipeline
