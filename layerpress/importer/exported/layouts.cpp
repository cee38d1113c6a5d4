#include "layerpress/importer/exported/layouts.h"

#include <algorithm>
#include <set>

namespace layerpress::importer {
namespace {

/// Operators that give the same elements in the same order, if their shapes allow it.
bool copies(const std::string& op) {
  static const std::set<std::string> kCopies = {"aten.view.default",       "aten._unsafe_view.default",
                                                "aten.reshape.default",    "aten.unsqueeze.default",
                                                "aten.squeeze.dim",        "aten.squeeze.dims",
                                                "aten.flatten.using_ints", "aten.unflatten.int",
                                                "aten.alias.default",      "aten.detach.default",
                                                "aten.clone.default",      "aten.contiguous.default",
                                                "aten._to_copy.default",   "aten.to.dtype",
                                                "aten.type_as.default",    "aten.expand.default",
                                                "aten.slice.Tensor",       "aten.lift_fresh_copy.default",
                                                "aten.dropout.default",    "aten.to.dtype_layout",
                                                "aten.to.device"};
  return kCopies.count(op) != 0;
}

bool permutes(const std::string& op) { return op == "aten.transpose.int" || op == "aten.permute.default"; }

bool is_cast(const std::string& op) {
  return op == "aten._to_copy.default" || op == "aten.to.dtype" || op == "aten.type_as.default";
}

}  // namespace

std::int64_t first_value(const ExportedNode& node) {
  std::int64_t first = -1;
  each_value(node.arguments, [&](std::int64_t value) { first = first < 0 ? value : first; });
  return first;
}

std::optional<std::int64_t> value_argument(const ExportedNode& node, std::size_t place) {
  if (place >= node.arguments.size() || !node.arguments[place].is_object() || !node.arguments[place].contains("v"))
    return std::nullopt;
  return json_integer(node.arguments[place]["v"]);
}

std::optional<double> number_argument(const ExportedNode& node, std::size_t place) {
  if (place >= node.arguments.size() || !node.arguments[place].is_number()) return std::nullopt;
  return node.arguments[place].get<double>();
}

Layouts::Layouts(const ExportedGraph& graph) : graph_(graph) { refresh(); }

void Layouts::refresh() {
  producers_.clear();
  for (std::size_t n = 0; n < graph_.nodes.size(); ++n) producers_[graph_.nodes[n].out] = n;
  origins_.resize(graph_.types.size());
  for (std::size_t v = 0; v < origins_.size(); ++v) origins_[v] = static_cast<std::int64_t>(v);
  for (const ExportedNode& node : graph_.nodes)
    if (const auto from = same_content(node))
      origins_[static_cast<std::size_t>(node.out)] = origins_[static_cast<std::size_t>(*from)];
}

const ExportedNode* Layouts::producer(std::int64_t value) const {
  const auto found = producers_.find(value);
  return found == producers_.end() ? nullptr : &graph_.nodes[found->second];
}

std::int64_t Layouts::axis(std::int64_t value) const {
  std::int64_t axis = -1;
  const std::vector<Size>& shape = type(value).shape;
  for (std::size_t d = 0; d < shape.size(); ++d) {
    if (shape[d].power == 0) continue;
    if (axis >= 0 || !shape[d].is_tokens()) return -1;
    axis = static_cast<std::int64_t>(d);
  }
  return axis;
}

std::int64_t Layouts::features(std::int64_t value) const {
  std::int64_t features = 1;
  for (const Size& size : type(value).shape)
    if (size.power == 0 && __builtin_mul_overflow(features, size.factor, &features)) return 0;
  return features;
}

bool Layouts::tokens_first(std::int64_t value) const {
  const std::int64_t place = axis(value);
  if (place < 0) return false;
  const std::vector<Size>& shape = type(value).shape;
  return std::all_of(shape.begin(), shape.begin() + place, [](const Size& size) { return size.factor == 1; });
}

std::int64_t Layouts::last_size(std::int64_t value) const {
  const std::vector<Size>& shape = type(value).shape;
  return shape.empty() || shape.back().power != 0 ? -1 : shape.back().factor;
}

std::int64_t Layouts::origin(std::int64_t value) const { return origins_.at(static_cast<std::size_t>(value)); }

std::int64_t Layouts::uncast(std::int64_t value) const {
  for (const ExportedNode* node = producer(value); node != nullptr && is_cast(node->op); node = producer(value))
    value = first_value(*node);
  return value;
}

/// The value whose [tokens, features] the node's result has, too.
std::optional<std::int64_t> Layouts::same_content(const ExportedNode& node) const {
  const bool moves = permutes(node.op);
  if (!moves && !copies(node.op)) return std::nullopt;
  const auto from = value_argument(node, 0);
  if (!from || !has_rows(*from) || !has_rows(node.out) || type(*from).dtype != type(node.out).dtype ||
      features(*from) != features(node.out))
    return std::nullopt;
  if (moves) return keeps_order(node, *from) ? from : std::nullopt;
  // A view of rows that are not first would tear them apart; a slice or expansion must not choose or repeat.
  const bool same_shape = type(*from).shape == type(node.out).shape;
  const bool dropped = node.op == "aten.dropout.default" &&
                       !(node.arguments.size() > 2 && node.arguments[2].is_boolean() && !node.arguments[2].get<bool>());
  if (dropped || ((node.op == "aten.slice.Tensor" || node.op == "aten.expand.default") && !same_shape))
    return std::nullopt;
  return same_shape || (tokens_first(*from) && tokens_first(node.out)) ? from : std::nullopt;
}

/// Whether the dimensions beside the tokens and those of size 1 keep their order.
bool Layouts::keeps_order(const ExportedNode& node, std::int64_t from) const {
  const std::vector<Size>& shape = type(from).shape;
  const auto rank = static_cast<std::int64_t>(shape.size());
  std::vector<std::int64_t> order(shape.size());
  for (std::int64_t d = 0; d < rank; ++d) order[static_cast<std::size_t>(d)] = d;
  const auto place = [&](const Json& json) {
    return static_cast<std::size_t>(((json_integer(json) % rank) + rank) % rank);
  };
  if (node.op == "aten.transpose.int") {
    std::swap(order[place(node.arguments.at(1))], order[place(node.arguments.at(2))]);
  } else {
    if (node.arguments.at(1).size() != shape.size()) return false;
    for (std::size_t d = 0; d < order.size(); ++d) order[d] = static_cast<std::int64_t>(place(node.arguments[1][d]));
  }
  std::int64_t before = -1;
  for (const std::int64_t d : order) {
    const Size& size = shape[static_cast<std::size_t>(d)];
    if (size.power != 0 || size.factor == 1) continue;
    if (d < before) return false;
    before = d;
  }
  return true;
}

}  // namespace layerpress::importer
