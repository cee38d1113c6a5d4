#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>
#include <span>
#include <variant>
#include <vector>

#include "layerpress/execution/batch.h"
#include "layerpress/graph/graph.h"
#include "layerpress/residency/onload.h"

namespace layerpress::execution {

/// A node that is computed.
struct NodeRun {
  const graph::Node& node;
  std::vector<at::Tensor>& inputs;  ///< one that nothing else holds may be overwritten
  const residency::Onload& parameters;
  BatchContext& context;
};

/// A node that is planned, for one batch.
struct NodeShape {
  const graph::Graph& graph;
  const graph::Node& node;
  const Batch& batch;
};

/// The device and the threads that compute a node.
struct Workplace {
  const residency::Placement& placement;
  int threads = 1;
};

/// The computation of one kind of node, and its cost.
struct KindExecution {
  at::Tensor (*execute)(const graph::Operation& operation, const NodeRun& run);
  /// Memory besides inputs and output, in bytes; on a CPU.
  std::uint64_t (*workspace_bytes)(const graph::Operation& operation, const NodeShape& shape, const Workplace& place);
  /// Floating-point operations; a multiply-add counts two.
  double (*flops)(const graph::Operation& operation, const NodeShape& shape);
  /// The phase in which they are counted.
  const char* phase;
  /// Rows for which a stored output takes memory.
  double (*stored_rows)(const graph::Operation& operation, const NodeShape& shape);
};

const KindExecution& execution_of(const graph::Operation& operation);

// One function per family, in execution/operations: its kinds in their order.
using FamilyExecution = std::span<const KindExecution>;
FamilyExecution executions(graph::Linears family);
FamilyExecution executions(graph::Norms family);
FamilyExecution executions(graph::Attentions family);
FamilyExecution executions(graph::Elementwise family);
FamilyExecution executions(graph::Layouts family);
FamilyExecution executions(graph::ExpertOperations family);
FamilyExecution executions(graph::ImageOperations family);
FamilyExecution executions(graph::Roundings family);
FamilyExecution executions(graph::ImportedOperations family);

template <typename Functions, typename Kind>
constexpr const char* phase_of() {
  if constexpr (requires { Functions::phase(static_cast<const Kind*>(nullptr)); })
    return Functions::phase(static_cast<const Kind*>(nullptr));
  return "forward";
}

/// The execution of a kind by static functions of a class:
///
///   execute(const Kind&, const NodeRun&)
///   workspace_bytes(const Kind&, const NodeShape&, const Workplace&)    without it, 0
///   flops(const Kind&, const NodeShape&)                                without it, 0
///   phase(const Kind*)                                                  without it, "forward"
///   stored_rows(const Kind&, const NodeShape&)                          without it, all of the batch
template <typename Functions, typename Kind>
constexpr KindExecution kind_execution() {
  return {[](const graph::Operation& operation, const NodeRun& run) {
            return Functions::execute(std::get<Kind>(operation), run);
          },
          [](const graph::Operation& operation, const NodeShape& shape, const Workplace& place) -> std::uint64_t {
            if constexpr (requires { Functions::workspace_bytes(std::get<Kind>(operation), shape, place); })
              return Functions::workspace_bytes(std::get<Kind>(operation), shape, place);
            return 0;
          },
          [](const graph::Operation& operation, const NodeShape& shape) -> double {
            if constexpr (requires { Functions::flops(std::get<Kind>(operation), shape); })
              return Functions::flops(std::get<Kind>(operation), shape);
            return 0;
          },
          phase_of<Functions, Kind>(),
          [](const graph::Operation& operation, const NodeShape& shape) -> double {
            if constexpr (requires { Functions::stored_rows(std::get<Kind>(operation), shape); })
              return Functions::stored_rows(std::get<Kind>(operation), shape);
            return static_cast<double>(shape.batch.rows(shape.graph.values[shape.node.output].rows));
          }};
}

template <typename Functions, typename... Kinds>
FamilyExecution executions_by(graph::Family<Kinds...>) {
  static constexpr std::array<KindExecution, sizeof...(Kinds)> kTable{kind_execution<Functions, Kinds>()...};
  return kTable;
}

/// Operations of a matrix product.
inline double product_flops(double rows, std::int64_t inner, std::int64_t columns) {
  return 2.0 * rows * static_cast<double>(inner) * static_cast<double>(columns);
}

/// The number of rows of a value in a batch; for selected tokens, an equal share for each expert is assumed.
double expected_rows(const graph::Graph& graph, graph::ValueId value, const Batch& batch);

}  // namespace layerpress::execution
