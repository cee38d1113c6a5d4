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
      const bool is_linear = node->op == "aten.linear.default";
      const std::int64_t input = is_linear ? origin_of(node->arguments, 0) : -1;
      std::int64_t weight = is_linear ? parameter_of(node->arguments, 1) : -1;
      if (!fits(input, weight)) weight = -1;
      if (weight >= 0) found_.emplace_back(input, graph_.parameters.at(weight).sources[0].name);
      std::size_t place = 0;
      each_value(node->arguments, [&](std::int64_t value) {
        const std::size_t own = place++;
        if (weight >= 0 && own < 2) return;
        read(*node, own, value);
      });
    }
    if (const auto kept = origins_.find(region_.root); kept != origins_.end()) others_.insert(kept->second);
    std::map<std::string, std::int64_t> readers;
    for (const auto& [input, weight] : found_)
      if (!weight.empty() && readers.emplace(weight, input).first->second != input) weights_of_others_.insert(weight);
    for (const auto& [input, weight] : found_)
      if (weights_of_others_.count(weight) != 0) others_.insert(input);
    std::erase_if(found_, [&](const auto& pair) { return others_.count(pair.first) != 0; });
    return std::move(found_);
  }

 private:
  /// A read of a value by anything but a linear of ours.
  void read(const ExportedNode& node, std::size_t place, std::int64_t value) {
    const bool is_copied = place == 0 && is_one_of(node.op, kSame) && node.op != "aten.neg.default";
    if (const std::int64_t parameter = parameter_of(value); parameter >= 0) {
      if (place == 0 && node.op == "aten._to_copy.default")
        parameters_[node.out] = parameter;
      else if (graph_.parameters.at(parameter).is_stored())
        weights_of_others_.insert(graph_.parameters.at(parameter).sources[0].name);
      return;
    }
    const std::int64_t origin = origin_of(value);
    if (origin < 0) return;
    if (place == 0 ? is_one_of(node.op, kNewValues) : node.op == "aten.type_as.default")
      found_.emplace_back(origin, "");
    else if (is_copied && has_whole_rows(node.out, origin))
      origins_[node.out] = origin;
    else
      others_.insert(origin);
  }

  /// Whether the value's last dimension is the row of `origin`.
  bool has_whole_rows(std::int64_t value, std::int64_t origin) const {
    const std::vector<Size>& shape = layouts_.type(value).shape;
    return layouts_.has_rows(value) && layouts_.has_rows(origin) && !shape.empty() && shape.back().power == 0 &&
           shape.back().exact && shape.back().factor == layouts_.features(origin);
  }

  /// Whether a linear with this stored weight reads the rows.
  bool fits(std::int64_t input, std::int64_t weight) const {
    if (input < 0 || weight < 0 || !layouts_.has_rows(input) || !graph_.parameters.at(weight).is_stored()) return false;
    const std::vector<std::int64_t>& shape = graph_.parameters.at(weight).sources[0].shape;
    return shape.size() == 2 && shape[1] == layouts_.features(input);
  }

  static std::int64_t value_in(const Json& arguments, std::size_t place) {
    if (arguments.size() <= place || !arguments[place].is_object() || !arguments[place].contains("v")) return -1;
    return json_integer(arguments[place]["v"]);
  }

  /// The parameter that a value is, perhaps in another dtype; -1: none.
  std::int64_t parameter_of(std::int64_t value) const {
    if (const auto found = parameters_.find(value); found != parameters_.end()) return found->second;
    return graph_.parameters.count(value) != 0 ? value : -1;
  }
  std::int64_t parameter_of(const Json& arguments, std::size_t place) const {
    return parameter_of(value_in(arguments, place));
  }

  /// The value outside that a value of the region is a copy of; -1: none.
  std::int64_t origin_of(std::int64_t value) const {
    if (const auto found = origins_.find(value); found != origins_.end()) return found->second;
    if (value < 0 || graph_.constants.count(value) != 0 || graph_.parameters.count(value) != 0) return -1;
    return regions_.outside(value, region_);
  }
  std::int64_t origin_of(const Json& arguments, std::size_t place) const {
    return origin_of(value_in(arguments, place));
  }

  const ExportedGraph& graph_;
  const Layouts& layouts_;
  const Regions& regions_;
  const Region& region_;
  std::map<std::int64_t, std::int64_t> origins_, parameters_;  // of copies
  std::set<std::int64_t> others_;                              // values that are also read otherwise
  std::set<std::string> weights_of_others_;
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
