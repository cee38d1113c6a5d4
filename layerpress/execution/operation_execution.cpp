#include "layerpress/execution/operation_execution.h"

namespace layerpress::execution {
namespace {

/// In the order of the alternatives of graph::Operation, which are the kinds of all families.
template <typename... Families>
std::vector<KindExecution> executions_of_all(graph::FamilyList<Families...>) {
  std::vector<KindExecution> all;
  for (const FamilyExecution family : {executions(Families())...}) all.insert(all.end(), family.begin(), family.end());
  return all;
}

}  // namespace

const KindExecution& execution_of(const graph::Operation& operation) {
  static const std::vector<KindExecution> all = executions_of_all(graph::AllFamilies());
  return all.at(operation.index());
}

}  // namespace layerpress::execution
