#include "layerpress/graph/facts/original_stream.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "layerpress/compression/statistics/cross_statistic.h"
#include "layerpress/compression/statistics/output_cross_statistic.h"
#include "layerpress/execution/body_run.h"
#include "layerpress/graph/facts/residual_writes.h"
#include "layerpress/graph/facts/rounded_inputs.h"
#include "layerpress/pipeline/schedule_runner.h"
#include "layerpress/quant/scheme.h"
#include "layerpress/schedule/group_work.h"
#include "layerpress/schedule/pipelines.h"
#include "tests/checkpoint/temporary_folder.h"
#include "tests/execution/small_model.h"
#include "tests/kernels/plain_products.h"
#include "tests/pipeline/gram_users.h"
#include "tests/pipeline/no_sink.h"
#include "tests/pipeline/one_scheme_modifier.h"

namespace layerpress::pipeline {
namespace {

/// Rounds coarsely and remembers what it was shown.
class CrossModifier : public OneSchemeModifier {
 public:
  CrossModifier() : OneSchemeModifier(channel_scheme(3)) {}
  std::vector<compression::StatisticPtr> statistics_wanted(const compression::ValueFacts& facts) const override {
    std::vector<compression::StatisticPtr> wanted = test::gram_only();
    if (facts.write && shares)
      wanted.push_back(
          std::make_shared<compression::OutputCrossStatistic>(*facts.write, shares->output, shares->stream));
    else if (facts.differs)
      wanted.push_back(std::make_shared<compression::CrossStatistic>());
    return wanted;
  }
  bool wants_original() const override { return true; }
  std::vector<compression::CompressedModule> compress(const std::vector<compression::LinearWeight>& linears,
                                                      const compression::Statistics* statistics,
                                                      PhaseTimes&) const override {
    std::vector<compression::CompressedModule> results;
    std::int64_t rows = 0;
    for (const compression::LinearWeight& linear : linears) rows += linear.weight.size(0);
    for (const compression::LinearWeight& linear : linears) {
      EXPECT_EQ(linear.group_rows, rows);
      const at::Tensor cross = statistics->of("cross"), output_cross = statistics->of("output_cross");
      crosses[linear.module] = cross.defined() ? cross.clone() : at::Tensor();
      if (output_cross.defined()) output_crosses[linear.module] = output_cross.clone();
      grams[linear.module] = statistics->of("gram").triu().clone();
      compression::CompressedModule result;
      result.weight = rounded_by_channel(linear.weight, *scheme.weights);
      compressed[linear.module] = result.weight.codes * result.weight.scale;
      results.push_back(std::move(result));
    }
    return results;
  }
  std::optional<kernels::ResidualShares> shares;
  mutable std::map<std::string, at::Tensor> crosses, output_crosses, grams, compressed;
};

struct StreamSetting {
  std::string targets = "Layer";
  std::size_t per_batch = 3;
  std::vector<bool> keep_after = {};
  residency::ActivationStore::Options activations = {};
};

compression::Assignments all_but_the_head(const graph::Graph& graph, const CrossModifier& modifier) {
  compression::Assignments assignments;
  for (std::size_t n = 0; n < graph.nodes.size(); ++n)
    if (std::holds_alternative<graph::Linear>(graph.nodes[n].operation) && graph.module_name(graph.nodes[n]) != "head")
      assignments.linears[static_cast<graph::NodeId>(n)] = {&modifier, &modifier.scheme, at::kFloat};
  return assignments;
}

/// Runs the pipeline and fills `modifier`; afterwards nothing may be left in the store.
void run(const test::SmallModel& model, const CrossModifier& modifier, const std::vector<execution::Batch>& batches,
         const StreamSetting& setting) {
  const compression::Assignments assignments = all_but_the_head(model.graph, modifier);
  const std::vector<graph::Subgraph> subgraphs = model.cut(setting.targets);
  PhaseTimes times;
  dist::Group alone;
  const execution::RunContext context{model.graph, model.weights, {at::kCPU, at::kFloat}, batches, {}, times, alone};
  std::vector<std::vector<bool>> keep;
  if (!setting.keep_after.empty()) keep.assign(subgraphs.size(), setting.keep_after);
  const auto schedule = schedule::sequential_schedule({model.graph, subgraphs, assignments, {}, {}, keep});
  residency::ActivationStore store(batches.size(), setting.activations);
  NoSink sink;
  run_schedule(context, schedule, assignments, store, sink);
  EXPECT_EQ(store.memory_bytes(), 0u);
}

at::Tensor value_of(const graph::Graph& graph, const residency::WeightSource& weights,
                    const std::vector<execution::Batch>& batches, graph::ValueId value) {
  PhaseTimes times;
  dist::Group alone;
  const execution::RunContext context{graph, weights, {at::kCPU, at::kFloat}, batches, {}, times, alone};
  const auto whole = graph::partition(graph, [](const graph::Module&) { return false; });
  execution::BodyRun body(context, whole, value);
  for (std::size_t s = 0; s < body.size(); ++s) body.run(s);
  return at::cat(body.results()).to(at::kDouble);
}

double distance(const at::Tensor& a, const at::Tensor& b) {
  return ((a.to(at::kDouble) - b).norm() / b.norm()).item<double>();
}

test::MemoryWeights compressed_weights(const test::SmallModel& model, const CrossModifier& modifier) {
  test::MemoryWeights compressed = model.weights;
  for (const auto& [module, weight] : modifier.compressed) compressed.tensors[module + ".weight"] = weight;
  return compressed;
}

/// Every linear saw (X̃ - X)ᵀX, with X and X̃ computed apart, by whole models with compressed and with original weights.
void expect_true_statistics(const test::SmallModel& model, const CrossModifier& modifier,
                            const std::vector<execution::Batch>& batches) {
  const test::MemoryWeights compressed = compressed_weights(model, modifier);
  std::size_t without = 0;
  for (const graph::Node& node : model.graph.nodes) {
    const auto seen = modifier.crosses.find(model.graph.module_name(node));
    if (!std::holds_alternative<graph::Linear>(node.operation) || seen == modifier.crosses.end()) continue;
    const at::Tensor x = value_of(model.graph, compressed, batches, node.inputs[0]);
    const at::Tensor original = value_of(model.graph, model.weights, batches, node.inputs[0]);
    EXPECT_LT(distance(modifier.grams.at(seen->first), x.t().mm(x).triu()), 1e-4) << seen->first;
    if (!seen->second.defined()) {
      EXPECT_TRUE(at::equal(x, original)) << seen->first;
      ++without;
    } else {
      EXPECT_LT(distance(seen->second, (original - x).t().mm(x)), 1e-3) << seen->first;
    }
  }
  EXPECT_EQ(without, 3u);  // q, k and v of the first layer: nothing is compressed before them
}

TEST(OriginalStream, ShowsWhatTheOriginalModelHas) {
  const test::SmallModel model;
  for (const std::size_t per_batch : {1, 3, 6}) {
    const std::vector<execution::Batch> batches = test::random_batches({5, 9, 1, 17, 8, 3}, per_batch);
    const CrossModifier modifier;
    run(model, modifier, batches, {.per_batch = per_batch});
    expect_true_statistics(model, modifier, batches);
  }
}

/// A model whose linears read values of 4 bits.
test::SmallModel rounding_model() {
  test::SmallModel model;
  model.graph = graph::with_rounded_inputs(model.graph, [graph = model.graph](graph::NodeId n) {
    std::vector<graph::RoundedInput> inputs;
    if (const auto* linear = std::get_if<graph::Linear>(&graph.nodes[n].operation))
      inputs.push_back({0, {.bits = 4, .run = linear->in_features}});
    return inputs;
  });
  return model;
}

TEST(OriginalStream, RoundsNothing) {
  const test::SmallModel model = rounding_model(), plain;
  const std::vector<execution::Batch> batches = test::random_batches({5, 9, 1, 17, 8, 3}, 2);
  for (const char* targets : {"Layer", "Linear", "NoSuchClass"}) {
    const CrossModifier modifier;
    run(model, modifier, batches, {.targets = targets});
    const test::MemoryWeights compressed = compressed_weights(model, modifier);
    EXPECT_EQ(modifier.crosses.size(), 14u);
    for (const auto& [module, cross] : modifier.crosses) {
      const auto input_of = [name = module](const graph::Graph& graph) {
        return std::find_if(graph.nodes.begin(), graph.nodes.end(),
                            [&](const graph::Node& node) {
                              return std::holds_alternative<graph::Linear>(node.operation) &&
                                     graph.module_name(node) == name;
                            })
            ->inputs[0];
      };
      const at::Tensor x = value_of(model.graph, compressed, batches, input_of(model.graph));
      const at::Tensor original = value_of(plain.graph, model.weights, batches, input_of(plain.graph));
      EXPECT_LT(distance(modifier.grams.at(module), x.t().mm(x).triu()), 1e-4) << module;
      ASSERT_TRUE(cross.defined()) << module;  // the first layer's, too
      EXPECT_LT(distance(cross, (original - x).t().mm(x)), 1e-3) << module;
    }
  }
}

TEST(OriginalStream, HoweverTheModelIsCut) {
  const test::SmallModel model;
  const std::vector<execution::Batch> batches = test::random_batches({5, 9, 1, 17, 8, 3}, 2);
  for (const char* targets : {"Linear", "NoSuchClass"}) {
    const CrossModifier modifier;
    run(model, modifier, batches, {.targets = targets});
    expect_true_statistics(model, modifier, batches);
  }
}

TEST(OriginalStream, ComputedAgainOrReadFromDisk) {
  const test::SmallModel model;
  const std::vector<execution::Batch> batches = test::random_batches({5, 9, 1, 17, 8, 3}, 2);
  const CrossModifier kept;
  run(model, kept, batches, {});
  const auto expect_same = [&](const CrossModifier& other) {
    for (const auto& [module, cross] : kept.crosses) {
      const at::Tensor& own = other.crosses.at(module);
      EXPECT_TRUE(cross.defined() ? at::equal(cross, own) : !own.defined()) << module;
    }
  };
  for (int bits = 0; bits < 16; ++bits) {
    const CrossModifier again;
    run(model, again, batches, {.keep_after = {(bits & 1) != 0, (bits & 2) != 0, (bits & 4) != 0, (bits & 8) != 0}});
    expect_same(again);
  }
  const test::TemporaryFolder folder;
  const CrossModifier spilled;
  run(model, spilled, batches, {.activations = {.memory_limit = 1000, .scratch = folder / "scratch"}});
  expect_same(spilled);
}

/// Linears that write into a stream that differs saw EᵀX, E from whole models, and no (X̃ - X)ᵀX; the others as ever.
void expect_true_outputs(const test::SmallModel& model, const CrossModifier& modifier,
                         const std::vector<execution::Batch>& batches) {
  const test::MemoryWeights compressed = compressed_weights(model, modifier);
  std::vector<std::string> found;
  for (const auto& [value, write] : graph::residual_writes(model.graph)) {
    const std::string module = model.graph.module_name(model.graph.nodes[write.linear]);
    const auto seen = modifier.output_crosses.find(module);
    if (seen == modifier.output_crosses.end()) continue;
    found.push_back(module);
    EXPECT_FALSE(modifier.crosses.at(module).defined());
    const auto in_both = [&](graph::ValueId id) {
      return std::pair{value_of(model.graph, compressed, batches, id),
                       value_of(model.graph, model.weights, batches, id)};
    };
    const auto [stream, stream_original] = in_both(write.stream);
    const at::Tensor expected = kernels::plain_output_cross(
        {in_both(value).first, stream, stream_original, in_both(write.output).second},
        write.bias.empty() ? at::Tensor() : model.weights.tensors.at(write.bias), *modifier.shares);
    EXPECT_LT(distance(seen->second, expected), 1e-3) << module;
  }
  // In front of the first layer's o nothing is compressed: there the stream is the same.
  EXPECT_EQ(found, (std::vector<std::string>{"layers.0.down", "layers.1.o", "layers.1.down"}));
  EXPECT_TRUE(modifier.crosses.at("layers.0.o").defined());
  EXPECT_TRUE(modifier.crosses.at("layers.1.gate").defined());
}

CrossModifier with_outputs() {
  CrossModifier modifier;
  modifier.shares = kernels::ResidualShares{0.6, 0.3};
  return modifier;
}

TEST(OriginalStream, ShowsWhatTheResidualStreamLacks) {
  const test::SmallModel model;
  for (const std::size_t per_batch : {1, 3, 6})
    for (const char* targets : {"Layer", "Linear", "NoSuchClass"}) {
      const std::vector<execution::Batch> batches = test::random_batches({5, 9, 1, 17, 8, 3}, per_batch);
      const CrossModifier modifier = with_outputs();
      run(model, modifier, batches, {.targets = targets, .per_batch = per_batch});
      expect_true_outputs(model, modifier, batches);
    }
}

TEST(OriginalStream, ResidualStreamComputedAgainOrReadFromDisk) {
  const test::SmallModel model;
  const std::vector<execution::Batch> batches = test::random_batches({5, 9, 1, 17, 8, 3}, 2);
  const CrossModifier kept = with_outputs();
  run(model, kept, batches, {});
  const auto expect_same = [&](const CrossModifier& other) {
    ASSERT_EQ(other.output_crosses.size(), kept.output_crosses.size());
    for (const auto& [module, sums] : kept.output_crosses)
      EXPECT_TRUE(at::equal(sums, other.output_crosses.at(module))) << module;
  };
  for (int bits = 0; bits < 16; ++bits) {
    const CrossModifier again = with_outputs();
    run(model, again, batches, {.keep_after = {(bits & 1) != 0, (bits & 2) != 0, (bits & 4) != 0, (bits & 8) != 0}});
    expect_same(again);
  }
  const test::TemporaryFolder folder;
  const CrossModifier spilled = with_outputs();
  run(model, spilled, batches, {.activations = {.memory_limit = 1000, .scratch = folder / "scratch"}});
  expect_same(spilled);
}

TEST(OriginalStream, SharesWhatDoesNotDiffer) {
  const test::SmallModel model;
  const CrossModifier modifier;
  const auto stream = *schedule::original_stream(model.graph, all_but_the_head(model.graph, modifier));
  for (const graph::Node& node : model.graph.nodes) {
    const bool is_before =
        std::holds_alternative<graph::Embedding>(node.operation) || model.graph.module_name(node) == "layers.0.norm";
    EXPECT_EQ(stream.differs(node.output), !is_before) << model.graph.module_name(node);
    EXPECT_EQ(stream.stored_as(node.output) == node.output, is_before);
    EXPECT_EQ(graph::OriginalStream::value_of(model.graph, stream.stored_as(node.output)), node.output);
  }
  EXPECT_FALSE(graph::OriginalStream(model.graph, {}).differs(model.graph.output));
}

}  // namespace
}  // namespace layerpress::pipeline
