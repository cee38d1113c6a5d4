#include "layerpress/importer/kept_rows.h"

#include <algorithm>
#include <map>
#include <optional>
#include <string_view>

namespace layerpress::importer {
namespace {

constexpr std::string_view kSums[] = {"aten.add.Tensor", "aten.sub.Tensor"};
constexpr std::string_view kProducts[] = {"aten.mul.Tensor", "aten.mul.Scalar", "aten.div.Tensor", "aten.div.Scalar"};
constexpr std::string_view kSame[] = {"aten._to_copy.default",   "aten.view.default",  "aten.reshape.default",
                                      "aten.unsqueeze.default",  "aten.squeeze.dim",   "aten.clone.default",
                                      "aten.contiguous.default", "aten.alias.default", "aten.neg.default"};

template <std::size_t kCount>
bool is_one_of(const std::string& op, const std::string_view (&names)[kCount]) {
  for (const std::string_view name : names)
    if (op == name) return true;
  return false;
}

/// What a value of the region is: a number for each row (or one for all) that no wide value outside has a part in; or a sum of rows of
/// such values, each times a number.
struct Content {
  bool is_number = false;
  std::set<std::int64_t> rows{};
};

class RowSums {
 public:
  RowSums(const ExportedGraph& graph, const Layouts& layouts, const Regions& regions, const Region& region)
      : graph_(graph), layouts_(layouts), regions_(regions), region_(region) {}

  std::set<std::int64_t> of_result() {
    for (const ExportedNode* node : region_.nodes)
      if (auto content = content_of(*node)) contents_[node->out] = std::move(*content);
    const auto found = contents_.find(region_.root);
    return found == contents_.end() ? std::set<std::int64_t>() : found->second.rows;
  }

 private:
  /// Of one row; -1 if it has none.
  std::int64_t features(std::int64_t value) const { return layouts_.has_rows(value) ? layouts_.features(value) : -1; }

  /// Nothing if it is something else.
  std::optional<Content> content(const Json& argument) const {
    if (argument.is_number()) return Content{.is_number = true};
    if (!argument.is_object() || !argument.contains("v")) return std::nullopt;
    const auto value = json_integer(argument["v"]);
    if (const auto found = contents_.find(value); found != contents_.end()) return found->second;
    if (const auto constant = graph_.constants.find(value); constant != graph_.constants.end()) {
      const std::vector<std::int64_t>& shape = constant->second.shape;
      const bool is_one = std::all_of(shape.begin(), shape.end(), [](std::int64_t size) { return size == 1; });
      return is_one ? std::optional(Content{.is_number = true}) : std::nullopt;
    }
    const std::int64_t from = regions_.outside(value, region_);
    if (from < 0 || graph_.parameters.count(value) != 0) return std::nullopt;
    if (features(value) == 1) return Content{.is_number = true};
    if (features(value) != layouts_.features(region_.root)) return std::nullopt;
    return Content{.is_number = false, .rows = {from}};
  }

  std::optional<Content> content_of(const ExportedNode& node) const {
    const auto first = node.arguments.empty() ? std::nullopt : content(node.arguments[0]);
    if (!first) return std::nullopt;
    const std::int64_t wanted = first->is_number ? 1 : layouts_.features(region_.root);
    if (is_one_of(node.op, kSame)) return features(node.out) == wanted ? first : std::nullopt;
    const bool adds = is_one_of(node.op, kSums), multiplies = is_one_of(node.op, kProducts);
    if (!adds && !multiplies) return number_of(node);
    const auto second = node.arguments.size() < 2 ? std::nullopt : content(node.arguments[1]);
    if (!second) return std::nullopt;
    if (first->is_number && second->is_number) return features(node.out) == 1 ? first : std::nullopt;
    if (features(node.out) != layouts_.features(region_.root)) return std::nullopt;
    const bool divides = multiplies && node.op.starts_with("aten.div");
    if (adds == (first->is_number || second->is_number) || (divides && !second->is_number)) return std::nullopt;
    Content sum{.is_number = false, .rows = first->rows};
    sum.rows.insert(second->rows.begin(), second->rows.end());
    return sum;
  }

  /// Any function of numbers that gives one for each row.
  std::optional<Content> number_of(const ExportedNode& node) const {
    bool are_numbers = features(node.out) == 1;
    each_value(node.arguments, [&](std::int64_t value) {
      const auto own = content(Json{{"v", value}});
      are_numbers = are_numbers && own && own->is_number;
    });
    return are_numbers ? std::optional(Content{.is_number = true}) : std::nullopt;
  }

  const ExportedGraph& graph_;
  const Layouts& layouts_;
  const Regions& regions_;
  const Region& region_;
  std::map<std::int64_t, Content> contents_;
};

}  // namespace

std::set<std::int64_t> kept_rows(const ExportedGraph& graph, const Layouts& layouts, const Regions& regions,
                                 const Region& region) {
  return RowSums(graph, layouts, regions, region).of_result();
}

}  // namespace layerpress::importer
