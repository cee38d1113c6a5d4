#pragma once

#include <cstdint>
#include <vector>

#include "layerpress/plan/run_plan.h"

namespace layerpress::plan {

/// One way to do a run; what is free to choose.
struct Choice {
  std::int64_t batch_tokens = 0;
  at::Device home = at::kCPU;  ///< of values between stages that are in memory
  /// Which groups of a subgraph keep what was computed up to them, the same in every subgraph; empty: all.
  std::vector<bool> keeps{};
  /// Bytes of values between stages in memory; the others go to the scratch file.
  std::uint64_t activation_limit = setup::kUnlimited;
};

/// Says what a run takes when it is done in one way or another.
class PlanMaker {
 public:
  /// Refers to `input`.
  explicit PlanMaker(const PlanInput& input);

  RunPlan make(const Choice& choice) const;
  /// Lets the run keep freed memory, as far as the budget goes, because new pages cost time.
  void add_spare(RunPlan& plan) const;
  /// What may be chosen as Choice::keeps: all combinations for subgraphs of the usual shapes.
  std::vector<std::vector<bool>> patterns() const;

 private:
  schedule::Schedule make_schedule(const std::vector<bool>& keeps) const;
  void add_copies(RunPlan& plan) const;
  void add_copy(SubgraphPlan& subgraph, const std::string& name, bool is_read_anyway) const;

  const PlanInput& input_;
  const setup::RunSetup& run_;
  std::uint64_t baseline_;  // host memory that the process holds beside everything planned
};

}  // namespace layerpress::plan
