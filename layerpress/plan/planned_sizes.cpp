#include "layerpress/plan/planned_sizes.h"

#include <c10/util/accumulate.h>

#include "layerpress/execution/node_execution.h"
#include "layerpress/execution/operation_execution.h"
#include "layerpress/graph/facts/original_stream.h"

namespace layerpress::plan {

PlannedSizes::PlannedSizes(const PlanRequest& request)
    : request_(request), run_(request.input.run), graph_(run_.model.traced.graph) {
  for (const graph::Node& node : graph_.nodes)
    for (const graph::WeightUse& use : graph::weights_of(node.operation))
      elements_[use.name] = c10::multiply_integers(use.shape);
}

std::uint64_t PlannedSizes::bytes_of(std::int64_t elements, at::ScalarType dtype) {
  return static_cast<std::uint64_t>(elements) * c10::elementSize(dtype);
}

at::ScalarType PlannedSizes::stored_dtype(const std::string& weight) const {
  return run_.model.checkpoint->spec(weight).dtype;
}

std::uint64_t PlannedSizes::weight_bytes(const std::string& weight) const {
  return bytes_of(elements(weight), run_.placement.dtype);
}

std::uint64_t PlannedSizes::stored_weight_bytes(const std::string& weight) const {
  return bytes_of(elements(weight), stored_dtype(weight));
}

std::uint64_t PlannedSizes::file_bytes(const std::string& weight) const {
  return run_.model.checkpoint->stored_bytes(weight);
}

std::uint64_t PlannedSizes::computing_bytes(const std::string& weight) const {
  if (!run_.model.checkpoint->is_computed(weight)) return 0;
  return stored_weight_bytes(weight) + run_.model.checkpoint->workspace_bytes(weight);
}

bool PlannedSizes::can_stay(const std::string& weight) const {
  return is_on_host() && stored_dtype(weight) == run_.placement.dtype && !run_.model.checkpoint->is_computed(weight);
}

std::uint64_t PlannedSizes::value_bytes(graph::ValueId value, std::size_t batch) const {
  const graph::Value& stored = graph_.values[graph::OriginalStream::value_of(graph_, value)];
  return bytes_of(request_.batches[batch].rows(stored.rows) * stored.features, run_.placement.dtype);
}

std::uint64_t PlannedSizes::kept_bytes(graph::ValueId stored, std::size_t batch) const {
  const graph::ValueId value = graph::OriginalStream::value_of(graph_, stored);
  const double rows = execution::stored_rows(graph_, value, request_.batches[batch]);
  return bytes_of(static_cast<std::int64_t>(rows) * graph_.values[value].features, run_.placement.dtype);
}

std::uint64_t PlannedSizes::counted_bytes(graph::ValueId value, std::size_t batch) const {
  const graph::Value& of = graph_.values[value];
  const std::int64_t counted = execution::count_of_counted_rows(request_.batches[batch], of.rows);
  return counted == request_.batches[batch].rows(of.rows) ? 0 : bytes_of(counted * of.features, run_.placement.dtype);
}

double PlannedSizes::counted_rows(graph::ValueId value) const {
  const graph::Rows kind = graph_.values[value].rows;
  double rows = 0;
  for (const execution::Batch& batch : request_.batches)
    rows += kind == graph::Rows::kSelected ? execution::expected_rows(graph_, value, batch)
                                           : static_cast<double>(execution::count_of_counted_rows(batch, kind));
  return rows;
}

std::uint64_t PlannedSizes::copied_bytes(const graph::Stage& stage, std::size_t batch) const {
  if (!copies()) return 0;
  std::uint64_t bytes = 0;
  for (const graph::ValueId value : stage.inputs)
    if (!graph_.is_input(value)) bytes += 3 * kept_bytes(value, batch);
  for (const graph::ValueId value : stage.keeps) bytes += kept_bytes(value, batch);
  return bytes;
}

}  // namespace layerpress::plan
