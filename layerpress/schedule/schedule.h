#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "layerpress/compression/modifier.h"
#include "layerpress/graph/stages.h"

namespace layerpress::schedule {

/// The one linear that reads a value, which writes into the residual stream, and the shares of its output cross matrix.
struct OutputCross {
  graph::NodeId linear = -1;
  graph::ValueId stream = -1;
  kernels::ResidualShares shares;
};

/// All batches through a stage, and what follows.
struct Step {
  graph::Stage stage;                      ///< up to the groups' inputs
  graph::Stage reference;                  ///< what runs in the original model, too, if it does
  std::vector<graph::ValueId> drops;       ///< stored values that go once a batch has passed
  std::vector<graph::LinearGroup> groups;  ///< to compress then; none depends on another one's linears
  /// Inputs of groups whose Gram matrices are summed up meanwhile: of the others they are there already, or nobody wants them;
  /// and those of them of which the original model's values are summed up, too.
  std::set<graph::ValueId> grams, crosses;
  std::map<graph::ValueId, OutputCross> output_crosses;  ///< which of `crosses` are summed up as those
  std::optional<graph::ValueId> survey;                  ///< or a routing of which every expert's tokens are counted

  /// Without anything to collect, a stage that keeps nothing has no purpose: what it is run for is computed again later.
  bool runs() const { return !grams.empty() || survey || !stage.keeps.empty(); }
};

/// The sequential pipeline's work for one subgraph, decided before anything runs.
struct SubgraphSchedule {
  std::string name;
  bool finished = false;                       ///< compressed by an earlier run; runs only for later subgraphs
  std::vector<Step> steps;                     ///< the last one has no groups
  std::vector<std::string> weights;            ///< to onload
  std::vector<std::string> reference_weights;  ///< to onload for the original model
  /// Weights compressed here that later subgraphs read, and weights that no subgraph reads after this one.
  std::vector<std::string> kept_weights, dropped_weights;
  std::vector<graph::ValueId> boundary;  ///< values stored when the subgraph is done, including the original model's
  bool recomputes = false;               ///< some stage runs nodes of earlier ones again

  std::vector<graph::LinearGroup> groups() const;  ///< of all steps
  /// Whether anything is run or compressed. (A finished subgraph may be left with selecting tokens, which takes no weight.)
  bool has_work() const;
};

/// The input of a schedule.
struct ScheduleRequest {
  const graph::Graph& graph;
  const std::vector<graph::Subgraph>& subgraphs;
  const compression::Assignments& assignments;
  std::vector<bool> finished;                 ///< per subgraph: compressed in an earlier run (empty: none)
  std::vector<graph::ValueId> available;      ///< values that are already stored
  std::vector<std::vector<bool>> keep_after;  ///< per subgraph and step, see graph::split_stages (empty: keep)
};

/// Gram matrices of the groups that are compressed in one step have this many bytes together, unless one alone has more:
/// many small groups (experts) share one pass over the batches.
inline constexpr std::uint64_t kStepGramBytes = 64u << 20;
/// Groups that do not depend on each other, cut into such runs.
std::vector<std::vector<graph::LinearGroup>> in_steps(const graph::Graph& graph,
                                                      const std::vector<graph::LinearGroup>& groups);

std::vector<SubgraphSchedule> make_schedule(const ScheduleRequest& request);

}  // namespace layerpress::schedule
