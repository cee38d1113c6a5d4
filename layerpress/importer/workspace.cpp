#include "layerpress/importer/workspace.h"

#include <c10/core/ScalarType.h>

#include <algorithm>
#include <set>
#include <unordered_map>

#include "layerpress/kernels/program/tensor_program.h"

namespace layerpress::importer {
namespace {

/// Operators whose result lies in their first argument's memory.
bool is_view(const std::string& op) {
  static const std::set<std::string> kViews = {
      "aten.view.default",  "aten._unsafe_view.default", "aten.reshape.default",    "aten.unsqueeze.default",
      "aten.squeeze.dim",   "aten.squeeze.dims",         "aten.flatten.using_ints", "aten.unflatten.int",
      "aten.alias.default", "aten.detach.default",       "aten.expand.default",     "aten.slice.Tensor",
      "aten.select.int",    "aten.transpose.int",        "aten.permute.default",    "aten.split_with_sizes.default",
      "aten.split.Tensor",  "aten.chunk.default",        "aten.unbind.int",         "sym.getitem"};
  return kViews.count(op) != 0;
}

graph::TokenBytes bytes_of(const ValueType& type) {
  graph::TokenBytes bytes;
  if (!type.known()) return bytes;
  auto size = static_cast<std::int64_t>(c10::elementSize(kernels::dtype_of_name(type.dtype)));
  int power = 0;
  for (const Size& each : type.shape) {
    if (__builtin_mul_overflow(size, std::max<std::int64_t>(each.factor, 1), &size)) size = std::int64_t{1} << 50;
    power += each.power;
  }
  (power == 0 ? bytes.fixed : power == 1 ? bytes.per_token : bytes.per_pair) = size;
  return bytes;
}

void add(graph::TokenBytes& sum, const graph::TokenBytes& bytes, std::int64_t sign) {
  sum.fixed += sign * bytes.fixed, sum.per_token += sign * bytes.per_token, sum.per_pair += sign * bytes.per_pair;
}

/// What an operator of our own takes while it runs: attention its scores, experts and recurrences fp32 copies.
graph::TokenBytes inner_bytes(const ExportedGraph& graph, const ExportedNode& node) {
  graph::TokenBytes bytes;
  if (node.op.rfind("layerpress.", 0) != 0) return bytes;
  each_value(node.arguments, [&](std::int64_t read) {
    if (graph.parameters.count(read) == 0) add(bytes, bytes_of(graph.types[static_cast<std::size_t>(read)]), 2);
  });
  if (node.op == "layerpress.attention.default") {
    const std::vector<Size>& shape =
        graph.types[static_cast<std::size_t>(json_integer(node.arguments.at(0).at("v")))].shape;
    bytes.per_pair += shape.size() == 4 ? shape[1].factor * 4 * static_cast<std::int64_t>(sizeof(float)) : 0;
  }
  return bytes;
}

}  // namespace

graph::TokenBytes region_workspace(const ExportedGraph& graph, const Region& region) {
  std::unordered_map<std::int64_t, std::int64_t> memory;  // the value whose memory a value lies in
  std::unordered_map<std::int64_t, std::size_t> last;     // the last node that reads it
  for (std::size_t n = 0; n < region.nodes.size(); ++n) {
    const ExportedNode& node = *region.nodes[n];
    memory[node.out] = node.out;
    std::int64_t first = -1;
    each_value(node.arguments, [&](std::int64_t read) {
      first = first < 0 ? read : first;
      if (memory.count(read) != 0) last[memory[read]] = n;
    });
    if (is_view(node.op) && memory.count(first) != 0) memory[node.out] = memory[first];
    last[memory[node.out]] = n;
  }
  last[memory[region.root]] = region.nodes.size();
  graph::TokenBytes now, most;
  std::vector<std::vector<std::int64_t>> dead(region.nodes.size() + 1);
  for (const auto& [value, n] : last) dead[n].push_back(value);
  for (std::size_t n = 0; n < region.nodes.size(); ++n) {
    const ExportedNode& node = *region.nodes[n];
    // A view of something from outside may have to be copied: it counts like a value of its own.
    if (memory[node.out] == node.out) add(now, bytes_of(graph.types[static_cast<std::size_t>(node.out)]), 1);
    graph::TokenBytes during = now;
    add(during, inner_bytes(graph, node), 1);
    most.fixed = std::max(most.fixed, during.fixed), most.per_token = std::max(most.per_token, during.per_token);
    most.per_pair = std::max(most.per_pair, during.per_pair);
    for (const std::int64_t value : dead[n]) add(now, bytes_of(graph.types[static_cast<std::size_t>(value)]), -1);
  }
  return most;
}

}  // namespace layerpress::importer
