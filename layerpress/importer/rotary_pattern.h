#pragma once

#include <optional>
#include <vector>

#include "layerpress/importer/lowering.h"

namespace layerpress::importer {

/// Finds x * cos + rotate_half(x) * sin, where cos and sin are those of positions times a constant's frequencies, and the
/// same for the first features of each head, followed by the others as they are.
class RotaryPattern {
 public:
  RotaryPattern(const ExportedGraph& graph, const Layouts& layouts, std::vector<graph::RopeTable>& tables)
      : graph_(graph), layouts_(layouts), tables_(tables) {}

  /// The rotation whose result is the node's, with its table among `tables`.
  std::optional<Lowered> match(const ExportedNode& node);

 private:
  struct Rotation {
    std::int64_t x = -1, size = 0, table = -1;
  };
  struct Angles {
    std::int64_t frequencies = -1;  ///< a constant
    double scaling = 1;
    bool operator==(const Angles&) const = default;
  };

  std::optional<Rotation> whole(const ExportedNode& sum);
  std::optional<Rotation> part(const ExportedNode& joined);
  std::optional<Rotation> products(const ExportedNode& direct, const ExportedNode& turned);
  bool is_half_turned(std::int64_t value, std::int64_t x) const;
  bool is_slice(std::int64_t value, std::int64_t x, std::int64_t begin, std::int64_t end) const;
  std::optional<Angles> angles(std::int64_t value, std::int64_t x, const char* function) const;
  std::optional<std::int64_t> frequencies(std::int64_t angles) const;
  std::int64_t source(std::int64_t value) const;
  std::int64_t table_of(const Angles& angles);

  const ExportedGraph& graph_;
  const Layouts& layouts_;
  std::vector<graph::RopeTable>& tables_;
  std::vector<Angles> known_;  // by table
};

}  // namespace layerpress::importer
