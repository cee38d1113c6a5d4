#pragma once

#include <array>
#include <string_view>

#include "layerpress/schedule/schedule.h"

namespace layerpress::schedule {

/// Subgraph after subgraph, with all batches. Each subgraph takes one pass that is cut before each linear group: run up
/// to the group's input and collect statistics, compress the group, continue with the compressed weights. Every linear
/// runs once, with its compressed weights, and sees the error of everything compressed before it.
Schedule sequential_schedule(const ScheduleRequest& request);

/// Subgraph after subgraph, with two passes for each, as LLM Compressor's sequential pipeline has them: the first collects
/// the statistics of all groups while the subgraph has its own weights, then all groups are compressed, and the second pass
/// computes with them.
Schedule two_pass_schedule(const ScheduleRequest& request);

/// The whole model on the original weights, batch by batch, with statistics for all groups. Then all groups are
/// compressed, subgraph by subgraph.
Schedule basic_schedule(const ScheduleRequest& request);

/// No data: one linear after the other. Each rank compresses the linears that it owns.
Schedule datafree_schedule(const ScheduleRequest& request);

/// An order of a run. A new one is a function like those above and a line in the list.
struct Pipeline {
  const char* name;
  Schedule (*make_schedule)(const ScheduleRequest& request);
  bool takes_data;
  /// A subgraph runs with the compressed weights of those before it, and values between subgraphs are stored.
  bool layer_by_layer;
  /// A linear is calibrated with what every linear before it became. Otherwise error propagation would correct an error
  /// that a linear before it in the layer corrects, too.
  bool sees_all_results;
};

inline constexpr std::array kPipelines{
    Pipeline{"sequential", sequential_schedule, /*takes_data=*/true, /*layer_by_layer=*/true,
             /*sees_all_results=*/true},
    Pipeline{"two_pass", two_pass_schedule, /*takes_data=*/true, /*layer_by_layer=*/true, /*sees_all_results=*/false},
    Pipeline{"basic", basic_schedule, /*takes_data=*/true, /*layer_by_layer=*/false, /*sees_all_results=*/false},
    Pipeline{"datafree", datafree_schedule, /*takes_data=*/false, /*layer_by_layer=*/false, /*sees_all_results=*/false},
};

/// Null for an unknown name.
constexpr const Pipeline* pipeline_named(std::string_view name) {
  for (const Pipeline& pipeline : kPipelines)
    if (pipeline.name == name) return &pipeline;
  return nullptr;
}

}  // namespace layerpress::schedule
