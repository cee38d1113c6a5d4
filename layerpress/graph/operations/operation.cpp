#include "layerpress/graph/operations/operation.h"

#include <fmt/format.h>

#include "layerpress/base/error.h"
#include "layerpress/graph/graph.h"

namespace layerpress::graph {

std::size_t NodeCheck::inputs() const { return node_.inputs.size(); }

std::int64_t NodeCheck::features(std::size_t input) const { return graph_.values.at(node_.inputs.at(input)).features; }

Rows NodeCheck::rows(std::size_t input) const { return graph_.values.at(node_.inputs.at(input)).rows; }

bool NodeCheck::has_constant(std::int64_t constant) const {
  return constant >= 0 && constant < static_cast<std::int64_t>(graph_.constants.size());
}

std::int64_t NodeCheck::rotated_pairs(std::int64_t table) const {
  if (table < 0 || table >= static_cast<std::int64_t>(graph_.rope_tables.size())) return -1;
  return static_cast<std::int64_t>(graph_.rope_tables[table].inverse_frequencies.size());
}

void NodeCheck::require(bool condition, const char* what) const {
  if (!condition)
    throw InternalError("[graph.lint] {} in {}: violates '{}'", kind_name(node_.operation), graph_.module_name(node_),
                        what);
}

void NodeCheck::expect(std::size_t count, const std::vector<std::int64_t>& sizes) const {
  require(node_.inputs.size() == count, "number of inputs");
  for (std::size_t i = 0; i < sizes.size(); ++i) require(features(i) == sizes[i], "features of the inputs");
}

void NodeCheck::runs(std::int64_t size) const {
  expect(1, {});
  require(size > 0 && features(0) % size == 0, "runs of equal size make up the features");
}

void NodeCheck::in_patches() const {
  for (std::size_t i = 0; i < node_.inputs.size(); ++i) require(rows(i) == Rows::kPatches, "rows are patches");
}

void NodeCheck::same_inputs() const {
  require(features(0) == features(1) && rows(0) == rows(1), "equal features and rows of both inputs");
  output(features(0));
}

void NodeCheck::output(std::int64_t size, Rows rows) const {
  require(graph_.values.at(node_.output).features == size, "output features");
  require(graph_.values.at(node_.output).rows == rows, "output rows");
}

std::string sizes_text(std::int64_t in, std::int64_t out) { return fmt::format("{} → {}", in, out); }

std::string heads_text(std::int64_t heads, std::int64_t kv_heads) {
  return kv_heads == heads ? fmt::format("{} heads", heads) : fmt::format("{} heads, {} for k, v", heads, kv_heads);
}

std::string number_text(double number) { return fmt::format("{:.4g}", number); }

}  // namespace layerpress::graph
