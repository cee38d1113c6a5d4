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

/// Of the first argument they take shape and type alone.
constexpr std::string_view kNewValues[] = {"aten.new_zeros.default", "aten.new_full.default", "aten.zeros_like.default",
                                           "aten.ones_like.default", "aten.empty_like.default"};

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

/// What linears of a region read, and what it reads for its type alone.
class LinearReaders {
 public:
  LinearReaders(const ExportedGraph& graph, const Layouts& layouts, const Regions& regions, const Region& region)
      : graph_(graph), layouts_(layouts), regions_(regions), region_(region) {}

  std::vector<std::pair<std::int64_t, std::string>> find() {
    for (const ExportedNode* node : region_.nodes) {
      const bool copies = is_one_of(node->op, kSame) && node->op != "aten.neg.default";
      const std::string weight = copies ? "" : weight_of(*node);
      const bool has_own_values = is_one_of(node->op, kNewValues), is_converted = node->op == "aten.type_as.default";
      bool is_first = true;
      each_value(node->arguments, [&](std::int64_t value) {
        const std::int64_t origin = origin_of(value);
        const bool first = std::exchange(is_first, false);
        if (origin < 0) return;
        if (first ? has_own_values : is_converted) return found_.emplace_back(origin, ""), void();
        if (copies && layouts_.has_rows(node->out) && layouts_.features(node->out) == layouts_.features(value))
          origins_[node->out] = origin;
        else if (!weight.empty() && first)
          found_.emplace_back(origin, weight);
        else if (graph_.parameters.count(origin) == 0)
          others_.insert(origin);
      });
    }
    if (const std::int64_t kept = origin_of(region_.root); kept >= 0) others_.insert(kept);
    std::erase_if(found_, [&](const auto& pair) { return others_.count(pair.first) != 0; });
    return std::move(found_);
  }

 private:
  /// The value outside that a value of the region is a copy of; -1: none.
  std::int64_t origin_of(std::int64_t value) const {
    if (const auto found = origins_.find(value); found != origins_.end()) return found->second;
    if (graph_.parameters.count(value) != 0) return value;
    return graph_.constants.count(value) != 0 ? -1 : regions_.outside(value, region_);
  }

  /// The stored weight of a linear; "" of anything else.
  std::string weight_of(const ExportedNode& node) const {
    if (node.op != "aten.linear.default" || node.arguments.size() < 2) return "";
    const Json& argument = node.arguments[1];
    if (!argument.is_object() || !argument.contains("v")) return "";
    const auto found = graph_.parameters.find(weight_origin(json_integer(argument["v"])));
    return found == graph_.parameters.end() || !found->second.is_stored() ? "" : found->second.sources[0].name;
  }

  /// Parameters have no rows of tokens, so that their copies are followed by their operators alone.
  std::int64_t weight_origin(std::int64_t value) const {
    for (const ExportedNode* node : region_.nodes)
      if (node->out == value && node->op == "aten._to_copy.default" && node->arguments[0].is_object() &&
          node->arguments[0].contains("v"))
        return json_integer(node->arguments[0]["v"]);
    return value;
  }

  const ExportedGraph& graph_;
  const Layouts& layouts_;
  const Regions& regions_;
  const Region& region_;
  std::map<std::int64_t, std::int64_t> origins_;
  std::set<std::int64_t> others_;
  std::vector<std::pair<std::int64_t, std::string>> found_;
};

}  // namespace

std::vector<std::pair<std::int64_t, std::string>> values_of_linears(const ExportedGraph& graph, const Layouts& layouts,
                                                                    const Regions& regions, const Region& region) {
  return LinearReaders(graph, layouts, regions, region).find();
}

std::set<std::int64_t> kept_rows(const ExportedGraph& graph, const Layouts& layouts, const Regions& regions,
                                 const Region& region) {
  return RowSums(graph, layouts, regions, region).of_result();
}

}  // namespace layerpress::importer
