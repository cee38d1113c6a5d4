#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <mutex>
#include <numeric>

#include "layerpress/graph/facts/expert_inputs.h"
#include "layerpress/pipeline/group_compression.h"
#include "layerpress/pipeline/schedule_runner.h"
#include "layerpress/schedule/pipelines.h"
#include "layerpress/schedule/schedule.h"
#include "tests/dist/thread_ranks.h"
#include "tests/execution/small_model.h"
#include "tests/pipeline/gram_users.h"
#include "tests/pipeline/one_scheme_modifier.h"

namespace layerpress::pipeline {
namespace {

/// Rounds to nearest and remembers what it was shown; the ranks' threads share one.
class NotingModifier : public OneSchemeModifier {
 public:
  explicit NotingModifier(bool gram = true) : OneSchemeModifier(channel_scheme(4)), gram_(gram) {}
  std::vector<compression::StatisticPtr> statistics_wanted(const compression::ValueFacts&) const override {
    return gram_ ? test::gram_only() : std::vector<compression::StatisticPtr>();
  }
  compression::CompressionCost cost(const std::vector<compression::LinearShape>& linears) const override {
    return test::update_cost(linears);
  }
  std::vector<compression::CompressedModule> compress(const std::vector<compression::LinearWeight>& linears,
                                                      const compression::Statistics* statistics,
                                                      PhaseTimes&) const override {
    const std::lock_guard lock(mutex_);
    std::vector<compression::CompressedModule> results;
    for (const compression::LinearWeight& linear : linears) {
      grams[linear.module].push_back(statistics->of("gram").triu().clone());
      tokens[linear.module] = statistics->tokens;
      compression::CompressedModule result;
      result.weight = rounded_by_channel(linear.weight, *scheme.weights);
      result.report.module = linear.module;
      results.push_back(std::move(result));
    }
    return results;
  }
  std::size_t tasks_at_once(const std::vector<compression::LinearShape>&) const override { return at_once; }
  std::vector<std::vector<compression::CompressedModule>> compress_together(
      const std::vector<compression::CompressionTask>& tasks, PhaseTimes& times) const override {
    {
      const std::lock_guard lock(mutex_);
      together.push_back(tasks.size());
      for (const compression::CompressionTask& task : tasks)
        for (std::size_t i = 0; i < task.linears.size(); ++i)
          EXPECT_EQ(task.linears[i].weight.sizes(), tasks.front().linears[i].weight.sizes());
    }
    return compression::Quantizer::compress_together(tasks, times);
  }

  std::size_t at_once = 1;
  mutable std::vector<std::size_t> together;                     // tasks of each turn
  mutable std::map<std::string, std::vector<at::Tensor>> grams;  // one of every rank that compressed a part
  mutable std::map<std::string, std::int64_t> tokens;

 private:
  bool gram_;
  mutable std::mutex mutex_;
};

// ---- who gets what

/// Seconds that the busiest rank and an average one compress, by the figures that the division goes by.
struct Busy {
  double most = 0, mean = 0;
  std::size_t split = 0;
};

Busy busy(const std::vector<schedule::DividedGroup>& groups, int ranks, const dist::DivisionRates& rates = {}) {
  std::vector<double> seconds(static_cast<std::size_t>(ranks), 0.0);
  Busy busy;
  for (std::size_t g = 0; const schedule::GroupDivision& division : schedule::divide_groups(groups, ranks, 1, rates)) {
    const auto columns = static_cast<double>(groups[g].linears.front().columns);
    std::int64_t rows = 0, wanted = 0;
    for (std::size_t rank = 0; rank < seconds.size(); ++rank) {
      double own = 0;
      for (const schedule::RowPart& part : division.parts[rank])
        rows += part.rows(), own += static_cast<double>(part.rows());
      if (own > 0 || division.owner < 0) seconds[rank] += (own + columns / 3) * columns * columns / rates.update_flops;
    }
    for (const compression::LinearShape& linear : groups[g].linears) wanted += linear.rows;
    EXPECT_EQ(rows, wanted) << "every row once";
    busy.split += division.owner < 0 ? 1 : 0;
    ++g;
  }
  busy.most = *std::max_element(seconds.begin(), seconds.end());
  busy.mean = std::accumulate(seconds.begin(), seconds.end(), 0.0) / ranks;
  return busy;
}

TEST(DivideGroups, DealsExpertsOutAsAWhole) {
  const NotingModifier modifier;
  for (const std::int64_t columns : {256, 512, 768})
    for (const std::int64_t rows : {512, 2048})
      for (const int ranks : {2, 3, 4, 8}) {
        const std::vector<schedule::DividedGroup> experts(
            28, {&modifier, {{rows, columns, at::kBFloat16, &modifier.scheme}}, test::triangle_bytes(columns)});
        const Busy found = busy(experts, ranks);
        // No more are split than are left over when all ranks have equally many.
        EXPECT_LE(found.split, 28u % static_cast<std::size_t>(ranks)) << columns << " " << rows << " " << ranks;
        EXPECT_LT(found.most, 1.2 * found.mean) << columns << " " << rows << " " << ranks;
      }
}

TEST(DivideGroups, SplitsWhatIsLargeAndDealsOutWhatIsSmallBesideIt) {
  const NotingModifier modifier;
  std::vector<schedule::DividedGroup> groups(
      8, {&modifier, {{1024, 512, at::kBFloat16, &modifier.scheme}}, test::triangle_bytes(512)});
  groups.insert(groups.begin() + 3,
                {&modifier, {{16384, 2048, at::kBFloat16, &modifier.scheme}}, test::triangle_bytes(2048)});
  const std::vector<schedule::GroupDivision> divisions = schedule::divide_groups(groups, 4, 0, {});
  std::vector<int> owned(4, 0);
  for (std::size_t i = 0; i < groups.size(); ++i) {
    EXPECT_EQ(divisions[i].owner < 0, i == 3) << i;
    if (i != 3) ++owned[static_cast<std::size_t>(divisions[i].owner)];
  }
  EXPECT_EQ(owned, (std::vector<int>{2, 2, 2, 2}));
}

TEST(DivideGroups, FewGroupsAreSplitUnlessTheNetworkIsSlow) {
  const NotingModifier modifier;
  const std::vector<schedule::DividedGroup> two(
      2, {&modifier, {{8192, 1024, at::kBFloat16, &modifier.scheme}}, test::triangle_bytes(1024)});
  EXPECT_EQ(busy(two, 8).split, 2u);
  EXPECT_EQ(busy(two, 8, {.network_bytes = 1e6}).split, 0u);
  // Where the statistics are everywhere in any case, a slow network is no reason.
  std::vector<schedule::DividedGroup> merged = two;
  for (schedule::DividedGroup& group : merged) group.statistics_bytes = 0;
  EXPECT_EQ(busy(merged, 8, {.network_bytes = 1e6}).split, 2u);
}

// ---- a layer of experts on several ranks

constexpr std::int64_t kExperts = 13, kFeatures = 32;

/// A mixture of experts between an embedding and a head.
struct ExpertModel {
  graph::Graph graph;
  test::MemoryWeights weights;

  explicit ExpertModel(bool all_tokens) {
    graph::Tracer tracer;
    graph::Symbol x = tracer.embedding("embed", tracer.tokens(), 50, kFeatures);
    {
      const auto scope = tracer.module("layer", "Layer");
      const graph::Symbol m = tracer.rms_norm("norm", "Norm", x, 1e-5);
      const graph::Symbol logits = tracer.linear("router", m, kExperts, {.class_name = "Router"});
      graph::Route route;
      route.experts = kExperts;
      route.top_k = 2;
      const graph::Symbol routing = tracer.route(logits, route);
      x = tracer.add(x, tracer.experts("experts", m, logits, routing, 64, "silu", {.class_name = "MLP"}));
    }
    graph = tracer.finish(tracer.linear("head", x, 50));
    if (all_tokens) graph = graph::without_selection(graph);
    at::manual_seed(21);
    for (const graph::Node& node : graph.nodes)
      for (const graph::WeightUse& use : graph::weights_of(node.operation))
        if (weights.tensors.count(use.name) == 0)
          weights.tensors[use.name] = use.shape.size() == 1 ? at::ones(use.shape) : at::randn(use.shape) * 0.3;
  }
};

/// Keeps what comes.
class KeepingSink : public ResultSink {
 public:
  void on_compressed(const graph::Node& node, const quant::QuantizationScheme&,
                     const compression::CompressedModule& result) override {
    codes[std::get<graph::Linear>(node.operation).weight] = result.weight.codes.clone();
    routed += result.report.routed_tokens.value_or(0);
  }
  void on_tensor(const std::string&, const at::Tensor&) override {}
  void on_subgraph_done(std::size_t, const Json&) override {}
  std::map<std::string, at::Tensor> codes;
  std::int64_t routed = 0;
};

struct MixtureSetting {
  bool all_tokens = true;
  bool basic = false;
  std::string targets = "Layer";
  std::int64_t min_tokens = 20;
};

/// Compresses the experts' linears with some of the batches.
KeepingSink compress(const MixtureSetting& setting, const ExpertModel& model, const NotingModifier& modifier,
                     const std::vector<execution::Batch>& batches, dist::Group& group) {
  compression::Assignments assignments;
  for (std::size_t n = 0; n < model.graph.nodes.size(); ++n)
    if (model.graph.module_name(model.graph.nodes[n]).find("experts.") != std::string::npos &&
        std::holds_alternative<graph::Linear>(model.graph.nodes[n].operation))
      assignments.linears[static_cast<graph::NodeId>(n)] = {&modifier, &modifier.scheme, at::kFloat};
  PhaseTimes times;
  execution::RunContext run{model.graph, model.weights, {at::kCPU, at::kFloat}, batches, {}, times, group};
  run.all_tokens = 43;
  run.min_tokens_per_expert = setting.min_tokens;
  const auto subgraphs =
      graph::partition(model.graph, [&](const graph::Module& module) { return module.class_name == setting.targets; });
  KeepingSink sink;
  const auto make = setting.basic ? schedule::basic_schedule : schedule::sequential_schedule;
  residency::ActivationStore store(batches.size());
  run_schedule(run, make({model.graph, subgraphs, assignments}), assignments, store, sink);
  EXPECT_EQ(store.memory_bytes(), 0u);
  return sink;
}

/// Sums over batches are the same in every order, up to rounding.
void expect_close(const NotingModifier& found, const NotingModifier& wanted) {
  ASSERT_EQ(found.grams.size(), wanted.grams.size());
  for (const auto& [module, grams] : wanted.grams)
    for (const at::Tensor& gram : found.grams.at(module))
      EXPECT_LT((gram - grams.front()).norm().item<double>(), 1e-5 * grams.front().norm().item<double>() + 1e-7)
          << module;
  EXPECT_EQ(found.tokens, wanted.tokens);
}

void compare_ranks(const MixtureSetting& setting, int ranks) {
  const ExpertModel model(setting.all_tokens);
  const std::vector<execution::Batch> batches = test::random_batches({5, 9, 1, 17, 8, 3}, 1);
  const NotingModifier alone_modifier, modifier;
  dist::Group alone;
  const KeepingSink wanted = compress(setting, model, alone_modifier, batches, alone);
  EXPECT_EQ(wanted.codes.size(), static_cast<std::size_t>(3 * kExperts));
  const auto errors = dist::run_ranks(ranks, [&](dist::Group& group) {
    // The last rank has no samples.
    std::vector<execution::Batch> own;
    for (std::size_t b = 0; b < batches.size(); ++b)
      if (std::cmp_equal(b % static_cast<std::size_t>(ranks - 1), group.rank())) own.push_back(batches[b]);
    const KeepingSink found = compress(setting, model, modifier, own, group);
    ASSERT_EQ(found.codes.size(), wanted.codes.size());
    EXPECT_EQ(found.routed, wanted.routed);
    for (const auto& [name, codes] : wanted.codes) EXPECT_TRUE(at::equal(found.codes.at(name), codes)) << name;
  });
  EXPECT_EQ(errors, std::vector<std::string>(static_cast<std::size_t>(ranks)));
  expect_close(modifier, alone_modifier);
  if (setting.targets == "Linear") return;
  // Down projections are dealt out: one rank has each of them, but for those left over.
  int several = 0;
  for (const auto& [module, grams] : modifier.grams)
    if (module.ends_with("down_proj")) several += grams.size() > 1 ? 1 : 0;
  EXPECT_LE(several, kExperts % ranks);
}

TEST(ExpertSteps, ExpertsAlikeAreCompressedTogether) {
  const ExpertModel model(/*all_tokens=*/false);
  const std::vector<execution::Batch> batches = test::random_batches({5, 9, 1, 17, 8, 3}, 1);
  const NotingModifier alone_modifier;
  dist::Group alone;
  const KeepingSink wanted = compress({}, model, alone_modifier, batches, alone);
  for (const std::size_t at_once : {2, 3, 100}) {
    NotingModifier modifier;
    modifier.at_once = at_once;
    const KeepingSink found = compress({}, model, modifier, batches, alone);
    ASSERT_EQ(found.codes.size(), wanted.codes.size());
    for (const auto& [name, codes] : wanted.codes) EXPECT_TRUE(at::equal(found.codes.at(name), codes)) << name;
    EXPECT_EQ(found.routed, wanted.routed);
    // All experts' gates with their ups, then all their downs.
    std::vector<std::size_t> turns;
    for (int step = 0; step < 2; ++step)
      for (std::size_t left = kExperts; left > 0; left -= turns.back()) turns.push_back(std::min(left, at_once));
    EXPECT_EQ(modifier.together, turns);
  }
}

TEST(ExpertSteps, RanksCompressTheirExpertsTogether) {
  const ExpertModel model(/*all_tokens=*/false);
  const std::vector<execution::Batch> batches = test::random_batches({5, 9, 1, 17, 8, 3}, 1);
  const NotingModifier alone_modifier;
  NotingModifier modifier;
  modifier.at_once = 3;
  dist::Group alone;
  const KeepingSink wanted = compress({}, model, alone_modifier, batches, alone);
  const auto errors = dist::run_ranks(2, [&](dist::Group& group) {
    const std::vector<execution::Batch> own(batches.begin() + 3 * group.rank(), batches.begin() + 3 * group.rank() + 3);
    const KeepingSink found = compress({}, model, modifier, own, group);
    for (const auto& [name, codes] : wanted.codes) EXPECT_TRUE(at::equal(found.codes.at(name), codes)) << name;
  });
  EXPECT_EQ(errors, std::vector<std::string>(2));
  EXPECT_GT(*std::max_element(modifier.together.begin(), modifier.together.end()), 1u);
}

TEST(ExpertSteps, RanksMakeWhatOneProcessMakes) {
  for (const bool all_tokens : {true, false})
    for (const int ranks : {2, 3, 4}) compare_ranks({.all_tokens = all_tokens}, ranks);
}

TEST(ExpertSteps, LinearByLinear) {
  for (const bool all_tokens : {true, false}) compare_ranks({.all_tokens = all_tokens, .targets = "Linear"}, 3);
}

TEST(ExpertSteps, AllLayersInOnePass) {
  for (const bool all_tokens : {true, false}) compare_ranks({.all_tokens = all_tokens, .basic = true}, 3);
}

TEST(ExpertSteps, MoreTokensWantedThanThereAre) {
  compare_ranks({.all_tokens = false, .min_tokens = 1000}, 3);
  compare_ranks({.all_tokens = false, .min_tokens = 0}, 3);
}

TEST(ExpertSteps, ShareAPassWhileTheirMatricesAreFew) {
  const NotingModifier modifier;
  const auto steps_of = [&](std::int64_t features) {
    graph::Tracer tracer;
    const graph::Symbol x = tracer.embedding("embed", tracer.tokens(), 8, features);
    const graph::Graph graph = tracer.finish(tracer.linear("head", x, 8));
    const schedule::ValueStatistics statistics(graph, {{{1, {&modifier, &modifier.scheme}}}, {}});
    return schedule::in_steps(graph, statistics, std::vector<graph::LinearGroup>(9, {x.id, {}}));
  };
  const auto steps = steps_of(1448);  // 8 MiB, barely
  ASSERT_EQ(steps.size(), 2u);
  EXPECT_EQ(steps[0].size(), 8u);
  EXPECT_EQ(steps_of(10'000).size(), 9u);  // more than a step's share alone
}

}  // namespace
}  // namespace layerpress::pipeline
