#include "layerpress/importer/rotary_pattern.h"

#include <algorithm>
#include <cstring>
#include <set>

namespace layerpress::importer {
namespace {

constexpr const char* kProduct = "aten.mul.Tensor";

/// The two arguments of a product, in both orders.
std::vector<std::pair<std::int64_t, std::int64_t>> factors(const ExportedNode& product) {
  const auto a = value_argument(product, 0), b = value_argument(product, 1);
  if (!a || !b) return {};
  return {{*a, *b}, {*b, *a}};
}

/// The two values that are joined along the last dimension.
std::optional<std::pair<std::int64_t, std::int64_t>> joined(const ExportedNode* node, std::size_t rank) {
  if (node == nullptr || node->op != "aten.cat.default" || node->arguments.size() != 2) return std::nullopt;
  const Json& parts = node->arguments[0];
  const auto last = static_cast<std::int64_t>(rank) - 1;
  if (!parts.is_array() || parts.size() != 2 || (node->arguments[1] != -1 && node->arguments[1] != last))
    return std::nullopt;
  std::vector<std::int64_t> values;
  each_value(parts, [&](std::int64_t value) { values.push_back(value); });
  return values.size() == 2 ? std::optional(std::pair(values[0], values[1])) : std::nullopt;
}

std::vector<double> floats_of(const std::string& bytes) {
  std::vector<float> values(bytes.size() / sizeof(float));
  std::memcpy(values.data(), bytes.data(), values.size() * sizeof(float));
  return {values.begin(), values.end()};
}

}  // namespace

std::optional<Lowered> RotaryPattern::match(const ExportedNode& node) {
  const bool joins = node.op == "aten.cat.default";
  const std::optional<Rotation> found = joins ? part(node) : whole(node);
  if (!found || !layouts_.has_rows(found->x) || layouts_.type(found->x).dtype != graph_.dtype) return std::nullopt;
  return Lowered{graph::Rotary{.head_dim = layouts_.last_size(found->x), .table = found->table},
                 {layouts_.origin(found->x)}};
}

std::optional<RotaryPattern::Rotation> RotaryPattern::whole(const ExportedNode& sum) {
  const auto a = value_argument(sum, 0), b = value_argument(sum, 1);
  if (sum.op != "aten.add.Tensor" || sum.arguments.size() != 2 || !a || !b) return std::nullopt;
  const ExportedNode *first = layouts_.producer(*a), *second = layouts_.producer(*b);
  if (first == nullptr || second == nullptr || first->op != kProduct || second->op != kProduct) return std::nullopt;
  auto found = products(*first, *second);
  return found ? found : products(*second, *first);
}

std::optional<RotaryPattern::Rotation> RotaryPattern::part(const ExportedNode& node) {
  const auto parts = joined(&node, layouts_.type(node.out).shape.size());
  const ExportedNode* sum = parts ? layouts_.producer(parts->first) : nullptr;
  auto rotated = sum != nullptr ? whole(*sum) : std::nullopt;
  const ExportedNode* slice = rotated ? layouts_.producer(rotated->x) : nullptr;
  const auto x = slice != nullptr ? value_argument(*slice, 0) : std::nullopt;
  if (!x || !is_slice(rotated->x, *x, 0, rotated->size) ||
      !is_slice(parts->second, *x, rotated->size, layouts_.last_size(*x)))
    return std::nullopt;
  rotated->x = *x;
  return rotated;
}

std::optional<RotaryPattern::Rotation> RotaryPattern::products(const ExportedNode& direct, const ExportedNode& turned) {
  for (const auto& [x, cosine] : factors(direct))
    for (const auto& [half_turned, sine] : factors(turned)) {
      if (!is_half_turned(half_turned, x)) continue;
      const auto angle = angles(cosine, x, "aten.cos.default");
      if (angle && angle == angles(sine, x, "aten.sin.default"))
        return Rotation{x, layouts_.last_size(x), table_of(*angle)};
    }
  return std::nullopt;
}

/// Whether the value is x with the halves of its last dimension exchanged, the second one negated.
bool RotaryPattern::is_half_turned(std::int64_t value, std::int64_t x) const {
  const std::int64_t size = layouts_.last_size(x);
  const auto parts = joined(layouts_.producer(value), layouts_.type(x).shape.size());
  const ExportedNode* negated = parts ? layouts_.producer(parts->first) : nullptr;
  if (size <= 0 || size % 2 != 0 || negated == nullptr || negated->op != "aten.neg.default") return false;
  const auto second = value_argument(*negated, 0);
  return second && is_slice(*second, x, size / 2, size) && is_slice(parts->second, x, 0, size / 2);
}

bool RotaryPattern::is_slice(std::int64_t value, std::int64_t x, std::int64_t begin, std::int64_t end) const {
  const ExportedNode* node = layouts_.producer(value);
  if (node == nullptr || node->op != "aten.slice.Tensor" || node->arguments.size() != 4) return false;
  const auto rank = static_cast<std::int64_t>(layouts_.type(x).shape.size());
  const Json &dimension = node->arguments[1], &from = node->arguments[2], &to = node->arguments[3];
  return value_argument(*node, 0) == x && (dimension == rank - 1 || dimension == -1) && from == begin &&
         to.is_number_integer() && std::min(json_integer(to), layouts_.last_size(x)) == end;
}

/// Of cos or sin, computed in fp32 and rounded afterwards, for each feature of x.
std::optional<RotaryPattern::Angles> RotaryPattern::angles(std::int64_t value, std::int64_t x,
                                                           const char* function) const {
  const std::int64_t size = layouts_.last_size(x);
  if (layouts_.type(value).dtype != graph_.dtype || layouts_.axis(value) < 0 ||
      layouts_.axis(value) != layouts_.axis(x) || layouts_.type(value).shape.size() != layouts_.type(x).shape.size() ||
      layouts_.last_size(value) != size || layouts_.features(value) != size)
    return std::nullopt;
  Angles found;
  const ExportedNode* node = layouts_.producer(source(value));
  if (node != nullptr && node->op == kProduct && number_argument(*node, 1)) {
    found.scaling = *number_argument(*node, 1);
    node = layouts_.producer(source(value_argument(*node, 0).value_or(node->out)));
  }
  const auto both = node != nullptr && node->op == function ? value_argument(*node, 0) : std::nullopt;
  if (!both || layouts_.type(*both).dtype != "float32") return std::nullopt;
  const auto halves = joined(layouts_.producer(*both), layouts_.type(*both).shape.size());
  if (!halves || halves->first != halves->second || layouts_.last_size(halves->first) != size / 2) return std::nullopt;
  const auto constant = frequencies(halves->first);
  if (!constant) return std::nullopt;
  found.frequencies = *constant;
  return found;
}

/// The constant that the positions are multiplied with: [1, frequencies, 1] @ [1, 1, tokens], transposed.
std::optional<std::int64_t> RotaryPattern::frequencies(std::int64_t angles) const {
  const ExportedNode* turned = layouts_.producer(angles);
  if (turned == nullptr || turned->op != "aten.transpose.int" || number_argument(*turned, 1) != 1 ||
      number_argument(*turned, 2) != 2 || layouts_.type(angles).shape.size() != 3 || !layouts_.tokens_first(angles))
    return std::nullopt;
  const ExportedNode* product = layouts_.producer(value_argument(*turned, 0).value_or(angles));
  if (product == nullptr || product->op != "aten.matmul.default") return std::nullopt;
  const auto left = value_argument(*product, 0), right = value_argument(*product, 1);
  if (!left || !right || layouts_.type(*left).dtype != "float32" || layouts_.type(*right).dtype != "float32" ||
      layouts_.features(*right) != 1 || !layouts_.has_rows(*right) || source(*right) != graph_.positions)
    return std::nullopt;
  const std::int64_t constant = source(*left);
  const auto found = graph_.constants.find(constant);
  if (found == graph_.constants.end() || found->second.dtype != "float32" || found->second.shape.size() != 1 ||
      layouts_.last_size(*left) != 1 || layouts_.features(*left) != found->second.shape[0])
    return std::nullopt;
  return constant;
}

/// The value before operators that only copy, cast or add dimensions.
std::int64_t RotaryPattern::source(std::int64_t value) const {
  static const std::set<std::string> kCopies = {"aten.unsqueeze.default", "aten.expand.default",
                                                "aten._to_copy.default",  "aten.slice.Tensor",
                                                "aten.to.dtype",          "aten.alias.default"};
  for (const ExportedNode* node = layouts_.producer(value); node != nullptr && kCopies.count(node->op) != 0;
       node = layouts_.producer(value)) {
    const std::int64_t before = first_value(*node);
    if (before < 0 || layouts_.features(before) != layouts_.features(node->out) ||
        layouts_.has_rows(before) != layouts_.has_rows(node->out))
      break;
    value = before;
  }
  return value;
}

std::int64_t RotaryPattern::table_of(const Angles& angles) {
  const auto found = std::find(known_.begin(), known_.end(), angles);
  if (found != known_.end()) return found - known_.begin();
  graph::RopeTable table;
  table.inverse_frequencies = floats_of(graph_.constants.at(angles.frequencies).bytes);
  table.attention_scaling = angles.scaling;
  tables_.push_back(std::move(table)), known_.push_back(angles);
  return static_cast<std::int64_t>(known_.size()) - 1;
}

}  // namespace layerpress::importer
