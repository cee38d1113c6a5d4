// Plans of the pipelines beside the sequential one.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <functional>
#include <set>
#include <vector>

#include "layerpress/plan/run_plan.h"
#include "layerpress/schedule/pipelines.h"
#include "tests/plan/small_setup.h"

namespace layerpress::plan {
namespace {

class PipelinePlan : public ::testing::Test {
 protected:
  RunPlan plan_without_data(const std::function<bool(graph::NodeId)>& owns) {
    rounding_.run.pipeline = schedule::pipeline_named("datafree");
    return plan_run({.run = rounding_.run, .samples = {}, .owns = owns});
  }

  RunPlan plan_basic(std::size_t samples) {
    solving_.run.pipeline = schedule::pipeline_named("basic");
    return plan_run({.run = solving_.run, .samples = std::vector<SampleShape>(samples, {512}), .batch_tokens = 1024});
  }

  static std::uint64_t sum(const RunPlan& plan, std::uint64_t SubgraphPlan::*what) {
    std::uint64_t sum = 0;
    for (const SubgraphPlan& subgraph : plan.memory.subgraphs) sum += subgraph.*what;
    return sum;
  }

  SmallSetup rounding_{"QuantizationModifier", {at::kCPU, at::kBFloat16}};
  SmallSetup solving_{"GPTQModifier", {at::kCPU, at::kBFloat16}};
};

/// Without data, the ranks' plans together have each linear once, and the copies of each rank.
TEST_F(PipelinePlan, ARankCountsTheLinearsThatItCompresses) {
  const RunPlan alone = plan_without_data({});
  rounding_.run.ranks = 2;
  std::set<graph::NodeId> first;
  for (const auto& [n, assignment] : rounding_.run.assignments.linears)
    if (first.size() < rounding_.run.assignments.linears.size() / 2) first.insert(n);
  const RunPlan none = plan_without_data([](graph::NodeId) { return false; });
  const RunPlan one = plan_without_data([&](graph::NodeId n) { return first.count(n) != 0; });
  const RunPlan other = plan_without_data([&](graph::NodeId n) { return first.count(n) == 0; });
  for (const auto what : {&SubgraphPlan::read_bytes, &SubgraphPlan::written_bytes, &SubgraphPlan::weight_bytes}) {
    EXPECT_LT(sum(one, what), sum(alone, what));
    EXPECT_LT(sum(other, what), sum(alone, what));
    EXPECT_EQ(sum(one, what) + sum(other, what), sum(alone, what) + sum(none, what));
  }
  EXPECT_EQ(none.memory.subgraphs.front().workspace_bytes, 0u);
}

/// Each batch passes the whole model before the next one, so that values of one batch are stored at once.
TEST_F(PipelinePlan, BasicStoresTheValuesOfOneBatch) {
  const RunPlan few = plan_basic(2), many = plan_basic(64);
  EXPECT_EQ(few.batches.size(), 1u);
  EXPECT_EQ(many.batches.size(), 32u);
  EXPECT_GT(most(few, &SubgraphPlan::activation_bytes), 0u);
  EXPECT_EQ(most(few, &SubgraphPlan::activation_bytes), most(many, &SubgraphPlan::activation_bytes));
  EXPECT_EQ(many.memory.spilled_bytes, 0u);
}

}  // namespace
}  // namespace layerpress::plan
