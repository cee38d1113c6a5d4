#pragma once

#include <optional>
#include <unordered_map>
#include <vector>

#include "layerpress/importer/exported/exported_graph.h"

namespace layerpress::importer {

/// How the values of an export lie in memory with the tokens' dimension first: as [tokens, features].
class Layouts {
 public:
  explicit Layouts(const ExportedGraph& graph);

  /// Looks at nodes that were added since.
  void refresh();

  const ExportedNode* producer(std::int64_t value) const;
  const ValueType& type(std::int64_t value) const { return graph_.types[static_cast<std::size_t>(value)]; }
  /// Whether the value has exactly one dimension of tokens and fixed sizes beside it.
  bool has_rows(std::int64_t value) const { return axis(value) >= 0; }
  /// The dimension of the tokens; -1 if there is none or several.
  std::int64_t axis(std::int64_t value) const;
  /// The product of all other dimensions.
  std::int64_t features(std::int64_t value) const;
  /// Whether only dimensions of size 1 stand before the tokens.
  bool tokens_first(std::int64_t value) const;
  /// The last dimension.
  std::int64_t last_size(std::int64_t value) const;
  /// The earliest value with the same [tokens, features].
  std::int64_t origin(std::int64_t value) const;
  /// The value before operations that only change the dtype.
  std::int64_t uncast(std::int64_t value) const;

 private:
  std::optional<std::int64_t> same_content(const ExportedNode& node) const;
  bool keeps_order(const ExportedNode& node, std::int64_t from) const;

  const ExportedGraph& graph_;
  std::unordered_map<std::int64_t, std::size_t> producers_;
  std::vector<std::int64_t> origins_;
};

/// The first value that the arguments name; -1 if there is none.
std::int64_t first_value(const ExportedNode& node);

/// Argument `place` as a value, a number or a boolean; nothing if it is not one.
std::optional<std::int64_t> value_argument(const ExportedNode& node, std::size_t place);
std::optional<double> number_argument(const ExportedNode& node, std::size_t place);

}  // namespace layerpress::importer
