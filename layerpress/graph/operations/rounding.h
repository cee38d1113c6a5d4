#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "layerpress/graph/operations/operation.h"

namespace layerpress::graph {

// Values as an engine of lower precision computes with them.

/// x rounded to few bits and back. A scale is found for every run of features (a whole row, or a group of it), or is one
/// number for all.
struct RoundValues {
  static constexpr const char* kKind = "round_values";
  std::int64_t bits = 8;
  bool floats = false;        ///< numbers of `bits` bits are e4m3 or e2m1, otherwise integers
  bool symmetric = true;      ///< of integers: without a zero point
  std::int64_t run = 0;       ///< features that share a scale; 0: `scale` and `zero_point` are everyone's
  bool power_scales = false;  ///< scales of runs are powers of two
  double global_scale = 0;    ///< not 0: scales of runs are e4m3 divided by it
  double scale = 0;
  double zero_point = 0;
  template <typename Self, typename Visitor>
  static void visit(Self& self, Visitor&& field) {
    field("bits", self.bits), field("floats", self.floats), field("symmetric", self.symmetric), field("run", self.run);
    field("power_scales", self.power_scales), field("global_scale", self.global_scale);
    field("scale", self.scale), field("zero_point", self.zero_point);
  }
  bool operator==(const RoundValues&) const = default;
  void check(const NodeCheck& node) const {
    node.require(floats ? bits == 4 || bits == 8 : bits >= 2 && bits <= 8, "there are numbers of so many bits");
    node.require(run > 0 || scale > 0, "a scale is found or positive");
    if (run > 0) node.runs(run);
    node.output(node.features(0));
  }
  std::vector<std::string> details(const std::string&) const {
    return {(floats ? "fp" : "int") + std::to_string(bits),
            run > 0 ? "scales per " + std::to_string(run) : "one scale"};
  }
};

using Roundings = Family<RoundValues>;

}  // namespace layerpress::graph
