#include "layerpress/pipeline/shared_values.h"

#include <gtest/gtest.h>

#include "tests/execution/small_model.h"

namespace layerpress::pipeline {
namespace {

/// Shares the greatest magnitude and counts how often it is asked for it.
class SharingModifier : public compression::Quantizer {
 public:
  std::string type() const override { return "SharingModifier"; }
  const quant::QuantizationScheme* scheme_for(const quant::ModuleName&) const override { return nullptr; }
  bool needs_data() const override { return false; }
  std::vector<compression::StatisticPtr> statistics_wanted(const compression::ValueFacts&) const override { return {}; }
  std::int64_t row_step(const compression::LinearShape&) const override { return 1; }
  compression::CompressionCost cost(const std::vector<compression::LinearShape>&) const override { return {}; }
  std::vector<compression::CompressedModule> compress(const std::vector<compression::LinearWeight>&,
                                                      const compression::Statistics*, PhaseTimes&) const override {
    return {};
  }
  std::optional<double> value_to_share(const compression::LinearWeight& linear,
                                       const compression::Statistics*) const override {
    ++asked[linear.module];
    return linear.weight.abs().amax().item<double>();
  }
  mutable std::map<std::string, int> asked;
};

class SharedValuesTest : public ::testing::Test {
 protected:
  SharedValuesTest() {
    for (const char* name : {"q", "k", "v", "o"}) {
      const graph::NodeId n = node_of(std::string("layers.0.") + name);
      nodes_[name] = n;
      assignments_.linears[n] = {&modifier_, nullptr, at::kFloat};
    }
    for (const char* name : {"q", "k", "v"})
      for (const char* other : {"q", "k", "v"})
        if (std::string(name) != other) assignments_.linears[nodes_[name]].fused.push_back(nodes_[other]);
  }

  graph::NodeId node_of(const std::string& module) const {
    for (graph::NodeId n = 0; n < static_cast<graph::NodeId>(model_.graph.nodes.size()); ++n)
      if (model_.graph.module_name(model_.graph.nodes[n]) == module) return n;
    throw InternalError("no module {}", module);
  }

  compression::LinearWeight linear(const std::string& name) const {
    return {"layers.0." + name, model_.weights.load("layers.0." + name + ".weight"), nullptr, at::kFloat};
  }

  double largest(const std::string& name) const { return linear(name).weight.abs().amax().item<double>(); }

  test::SmallModel model_;
  std::vector<execution::Batch> batches_;
  PhaseTimes times_;
  dist::Group alone_;
  execution::RunContext run_{model_.graph, model_.weights, {at::kCPU, at::kFloat}, batches_, {}, times_, alone_};
  residency::Onload unchanged_{model_.weights, {}, run_.placement};
  SharingModifier modifier_;
  compression::Assignments assignments_;
  std::map<std::string, graph::NodeId> nodes_;
};

TEST_F(SharedValuesTest, FusedLinearsGetTheGreatest) {
  model_.weights.tensors["layers.0.k.weight"][3][5] = -50;
  SharedValues shared(run_, assignments_);
  std::vector<compression::LinearWeight> linears = {linear("q"), linear("k"), linear("v"), linear("o")};
  shared.fill({nodes_["q"], nodes_["k"], nodes_["v"], nodes_["o"]}, nullptr, unchanged_, linears);
  for (std::size_t i = 0; i < 3; ++i) EXPECT_EQ(linears[i].shared, 50);
  EXPECT_EQ(linears[3].shared, largest("o"));
  EXPECT_LT(*linears[3].shared, 50);
}

TEST_F(SharedValuesTest, LinearsThatComeAloneGetTheSameAndEachIsLookedAtOnce) {
  model_.weights.tensors["layers.0.v.weight"][0][0] = 40;
  SharedValues shared(run_, assignments_);
  for (const char* name : {"q", "k", "v"}) {
    std::vector<compression::LinearWeight> alone = {linear(name)};
    shared.fill({nodes_[name]}, nullptr, unchanged_, alone);
    EXPECT_EQ(alone[0].shared, 40) << name;
  }
  EXPECT_EQ(modifier_.asked, (std::map<std::string, int>{{"layers.0.q", 1}, {"layers.0.k", 1}, {"layers.0.v", 1}}));
}

TEST_F(SharedValuesTest, WeightsThatATransformHasChangedCount) {
  residency::Onload parameters(model_.weights, {"layers.0.k.weight"}, run_.placement);
  at::Tensor changed = model_.weights.load("layers.0.k.weight").clone();
  changed[1][1] = 30;
  parameters.change("layers.0.k.weight", changed);
  SharedValues shared(run_, assignments_);
  std::vector<compression::LinearWeight> alone = {linear("q")};
  shared.fill({nodes_["q"]}, nullptr, parameters, alone);
  EXPECT_EQ(alone[0].shared, 30);
}

}  // namespace
}  // namespace layerpress::pipeline
