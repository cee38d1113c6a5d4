#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "layerpress/setup/run_setup.h"

namespace layerpress::plan {

/// The properties of a sample that a plan needs.
struct SampleShape {
  std::int64_t tokens = 0;
  std::vector<std::int64_t> filled_tiles = {};  ///< of each of its images
  std::optional<std::int64_t> counted = {};     ///< tokens that count in statistics; nothing: all
};
std::vector<SampleShape> shapes_of(const data::CalibrationSet& set);

/// The input of a run's plan.
struct PlanInput {
  const setup::RunSetup& run;
  std::vector<SampleShape> samples;                  ///< this rank's; empty without data
  std::vector<bool> finished{};                      ///< subgraphs done by an earlier run (empty: none)
  std::vector<graph::ValueId> available{};           ///< values that are already stored
  std::function<bool(const std::string&)> mapped{};  ///< whether a weight is used directly from the mapped checkpoint
  std::int64_t batch_tokens = 0;                     ///< 0: chosen
  std::function<bool(graph::NodeId)> owns{};  ///< without data: whether this rank compresses a linear (empty: all)
};

}  // namespace layerpress::plan
