#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "layerpress/compression/assignments.h"
#include "layerpress/graph/stages.h"
#include "layerpress/schedule/value_statistics.h"

namespace layerpress::schedule {

/// The trial of a transform (compression/trial.h), after the step's stage and the transforms before it.
struct TrialStages {
  std::size_t transform = 0;  ///< its index in Assignments::transforms
  graph::Stage before;        ///< once for a batch: keeps the values that `tried` reads and that are not stored
  graph::Stage tried;         ///< for each candidate: the nodes that depend on the balanced readers; keeps the outputs
};

/// What chooses the experts of a token.
struct Router {
  graph::ValueId logits = -1;  ///< their scores; the routing itself, where the graph has no others
  graph::ValueId routing = -1;
};

/// All batches through a stage, and what follows.
struct Step {
  graph::Stage stage;                      ///< up to the groups' inputs
  graph::Stage original;                   ///< what runs in the original model, too, if it does
  std::vector<graph::ValueId> drops;       ///< stored values that go once a batch has passed
  std::vector<std::size_t> transforms;     ///< to apply afterwards, in this order: indices in Assignments::transforms
  std::vector<TrialStages> trials{};       ///< of those that want one
  std::vector<graph::LinearGroup> groups;  ///< to compress then; none depends on another one's linears
  std::vector<graph::ValueId> observed;  ///< values that no group reads, but whose range stored parameters follow from
  /// Statistics to collect, for the transforms, of the groups' inputs and of observed values, unless an earlier step has collected
  /// them or no modifier wants them.
  std::map<graph::ValueId, std::vector<compression::StatisticPtr>> statistics;
  std::optional<Router> survey;  ///< or a router of which every expert's tokens are counted

  /// Without anything to collect, a stage that keeps nothing has no purpose: what it is run for is computed again later.
  bool runs() const { return !statistics.empty() || survey || !stage.keeps.empty(); }
};

/// How ranks share the compression of a step's groups.
enum class Sharing {
  kRows,        ///< they divide rows, and statistics are merged where they are needed
  kMergedRows,  ///< they divide rows, and all of them have all statistics
  kLinears,     ///< each compresses the linears that it writes, without the others
};

/// The work for one subgraph, or for the whole model before the subgraphs, decided before anything runs.
struct SubgraphSchedule {
  std::string name;
  std::optional<std::size_t> subgraph;  ///< its index; nothing: the whole model
  bool finished = false;                ///< compressed by an earlier run; runs only for later subgraphs
  bool batch_by_batch = false;          ///< each batch passes all steps before the next batch
  bool uses_results = true;             ///< later nodes compute with the compressed weights
  Sharing sharing = Sharing::kRows;
  std::vector<Step> steps;                    ///< the last one has no groups
  std::vector<std::string> weights;           ///< to onload
  std::vector<std::string> reads;             ///< to read before: `weights`, and perhaps others that are only copied
  std::vector<std::string> original_weights;  ///< to onload for the original model
  /// Weights compressed here that later subgraphs read, and weights that no subgraph reads after this one.
  std::vector<std::string> kept_weights, dropped_weights;
  std::vector<graph::ValueId> boundary;  ///< values stored when the subgraph is done, including the original model's
  bool recomputes = false;               ///< some stage runs nodes of earlier ones again

  /// Parameters that follow from values' ranges and are stored when the subgraph is done: indices in Assignments::stored.
  std::vector<std::size_t> stored;
  /// Parameters that transforms change here and that stay uncompressed.
  std::vector<std::string> changed_weights;

  std::vector<graph::LinearGroup> groups() const;  ///< of all steps
  std::vector<std::size_t> transforms() const;     ///< of all steps
  /// Whether anything is run or compressed. (A finished subgraph may be left with selecting tokens, which takes no weight.)
  bool has_work() const;
};

/// The input of a schedule.
struct ScheduleRequest {
  const graph::Graph& graph;
  const std::vector<graph::Subgraph>& subgraphs;
  const compression::Assignments& assignments;
  std::vector<bool> finished{};                 ///< per subgraph: compressed in an earlier run (empty: none)
  std::vector<graph::ValueId> available{};      ///< values that are already stored
  std::vector<std::vector<bool>> keep_after{};  ///< per subgraph and step, see graph::split_stages (empty: keep)
  std::function<bool(graph::NodeId)> owns{};    ///< without data: whether this rank writes a linear (empty: all)

  bool is_finished(std::size_t s) const { return !finished.empty() && finished[s]; }
};

/// Statistics of the groups that are compressed in one step have this many bytes together, unless one group alone has more:
/// many small groups (experts) share one pass over the batches.
inline constexpr std::uint64_t kStepStatisticsBytes = 64u << 20;
/// The values whose statistics a step's transforms, groups and stored parameters use, once for each use.
std::vector<graph::ValueId> statistics_used(const Step& step, const compression::Assignments& assignments);

/// Adds the parameters that a plan's transforms change.
void add_changed_weights(const ScheduleRequest& request, SubgraphSchedule& plan);

/// The transforms of a subgraph's parameters, as indices in Assignments::transforms. All of their nodes lie in the subgraph.
std::vector<std::size_t> transforms_of(const graph::Subgraph& subgraph, const compression::Assignments& assignments);

/// The stored parameters of the modules of a subgraph, as indices in Assignments::stored.
std::vector<std::size_t> stored_of(const graph::Subgraph& subgraph, const compression::Assignments& assignments);

/// The values from whose range they follow and whose statistics none of `groups` wants.
std::vector<graph::ValueId> observed_values(const std::vector<std::size_t>& stored,
                                            const std::vector<graph::LinearGroup>& groups,
                                            const compression::Assignments& assignments);

/// Groups that do not depend on each other, cut into such runs.
std::vector<std::vector<graph::LinearGroup>> in_steps(const graph::Graph& graph, const ValueStatistics& statistics,
                                                      const std::vector<graph::LinearGroup>& groups);

using Schedule = std::vector<SubgraphSchedule>;

/// The first entry from `s` on that reads weights, or the schedule's size.
std::size_t next_that_reads(const Schedule& schedule, std::size_t s);

}  // namespace layerpress::schedule
