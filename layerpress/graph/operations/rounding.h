#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "layerpress/graph/operations/operation.h"

namespace layerpress::graph {

// Values as an engine of lower precision computes with them.

/// x rounded to few bits and back. A scale is found for every run of features (a whole row, or a group of it), or is one
/// number for all, or is given for every run of features.
struct RoundValues {
  static constexpr const char* kKind = "round_values";
  std::int64_t bits = 8;
  bool floats = false;                ///< numbers of `bits` bits are e4m3 or e2m1, otherwise integers
  bool symmetric = true;              ///< of integers: without a zero point
  std::int64_t run = 0;               ///< features that share a scale; 0: `scales` and `zero_points` are given
  bool power_scales = false;          ///< scales of runs are powers of two
  double global_scale = 0;            ///< not 0: scales of runs are e4m3 divided by it
  std::vector<double> scales{};       ///< one for all, or one for each of equal runs of features
  std::vector<double> zero_points{};  ///< the same; empty: all 0
  template <typename Self, typename Visitor>
  static void visit(Self& self, Visitor&& field) {
    field("bits", self.bits), field("floats", self.floats), field("symmetric", self.symmetric), field("run", self.run);
    field("power_scales", self.power_scales), field("global_scale", self.global_scale);
    field("scales", self.scales), field("zero_points", self.zero_points);
  }
  bool operator==(const RoundValues&) const = default;
  /// What is scaled before it is rounded.
  ScalePassage passage(std::size_t) const { return ScalePassage::kPasses; }
  void check(const NodeCheck& node) const {
    node.require(floats ? bits == 4 || bits == 8 : bits >= 2 && bits <= 8, "there are numbers of so many bits");
    node.require((run > 0) == scales.empty(), "scales are found or given");
    for (const double scale : scales) node.require(scale > 0, "scales are positive");
    node.require(zero_points.empty() || zero_points.size() == scales.size(), "a zero point for every scale");
    if (run > 0)
      node.runs(run);
    else
      node.runs(node.features(0) / static_cast<std::int64_t>(scales.size()));
    node.output(node.features(0));
  }
  std::vector<std::string> details(const std::string&) const {
    return {(floats ? "fp" : "int") + std::to_string(bits), run > 0             ? "scales per " + std::to_string(run)
                                                            : scales.size() > 1 ? "scales per head"
                                                                                : "one scale"};
  }
};

using Roundings = Family<RoundValues>;

}  // namespace layerpress::graph
