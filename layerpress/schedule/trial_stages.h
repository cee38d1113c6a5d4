#pragma once

#include <cstdint>
#include <vector>

#include "layerpress/schedule/schedule.h"

namespace layerpress::schedule {

/// A trial makes each candidate once for so many consecutive batches that their kept values have at least this many bytes together:
/// making a candidate costs as much as running it on some hundred tokens.
inline constexpr std::uint64_t kTrialBytes = 64u << 20;

/// The outputs of a trial with the balanced readers: those of the smallest module that holds all of them and is called as a whole
/// (no list of modules), that is, the values that nodes outside read. If there is only one balanced reader, its output.
/// `consumers`: those of the graph.
std::vector<graph::ValueId> trial_outputs(const graph::Graph& graph,
                                          const std::vector<std::vector<graph::NodeId>>& consumers,
                                          const std::vector<graph::NodeId>& balanced);

/// The stages of the trial of a site of the transform with this index. `stored`: by value, whether it is in the store. Throws
/// RecipeError for experts whose tokens are selected for calibration.
TrialStages trial_stages(const graph::Graph& graph, const graph::Subgraph& subgraph, std::size_t transform,
                         const compression::TransformSite& site, const std::vector<bool>& stored);

}  // namespace layerpress::schedule
