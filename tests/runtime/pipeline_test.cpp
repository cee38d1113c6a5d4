#include <gtest/gtest.h>

#include "layerpress/base/error.h"
#include "layerpress/quant/scheme.h"
#include "layerpress/runtime/compression.h"
#include "small_model.h"

namespace layerpress::runtime {
namespace {

/// Rounds every weight to nearest and remembers the Gram matrix it was shown for each module.
class RecordingModifier : public Modifier {
 public:
  RecordingModifier() {
    scheme.weights.emplace();
    scheme.weights->num_bits = 4;
    scheme.weights->strategy = quant::Strategy::kChannel;
    scheme.format = "pack-quantized";
  }
  std::string type() const override { return "RecordingModifier"; }
  const quant::QuantizationScheme* scheme_for(const quant::ModuleName&) const override { return &scheme; }
  bool needs_data() const override { return true; }
  StatisticsWanted statistics_wanted() const override { return {.gram = true}; }
  std::vector<CompressedModule> compress(const std::vector<LinearWeight>& linears, const Statistics* statistics,
                                         PhaseTimes&) const override {
    std::vector<CompressedModule> results;
    for (const LinearWeight& linear : linears) {
      if (statistics != nullptr) grams[linear.module] = statistics->gram.triu().clone();
      if (statistics != nullptr) tokens[linear.module] = statistics->tokens;
      const at::Tensor scale = linear.weight.abs().amax(1, true) / 7.5;
      results.push_back({{(linear.weight / scale).clamp(-8, 7).round().to(at::kChar), scale, {}}, {}});
    }
    return results;
  }
  quant::QuantizationScheme scheme;
  mutable std::map<std::string, at::Tensor> grams;
  mutable std::map<std::string, std::int64_t> tokens;
};

class RecordingSink : public ResultSink {
 public:
  void on_compressed(const graph::Node&, const quant::QuantizationScheme&, const CompressedModule&) override {
    ++compressed;
  }
  void on_subgraph_done(const graph::Subgraph& subgraph) override { done.push_back(subgraph.name); }
  int compressed = 0;
  std::vector<std::string> done;
};

using Pipeline = void (*)(const RunContext&, const std::vector<graph::Subgraph>&, const Assignments&, ResultSink&);

/// Runs a pipeline over all linears but the head; returns what the modifier saw.
RecordingModifier run(Pipeline pipeline, const std::string& targets, std::size_t per_batch, RecordingSink& sink) {
  const SmallModel model;
  RecordingModifier modifier;
  Assignments assignments;
  for (std::size_t n = 0; n < model.graph.nodes.size(); ++n)
    if (std::holds_alternative<graph::Linear>(model.graph.nodes[n].operation) &&
        model.graph.module_name(model.graph.nodes[n]) != "head")
      assignments[static_cast<graph::NodeId>(n)] = {&modifier, &modifier.scheme, at::kFloat};
  const std::vector<Batch> batches = random_batches({5, 9, 1, 17, 8, 3}, per_batch);
  PhaseTimes times;
  const RunContext context{model.graph, model.weights, {at::kCPU, at::kFloat}, batches, {}, times};
  pipeline(context, model.cut(targets), assignments, sink);
  return modifier;
}

double largest_difference(const RecordingModifier& a, const RecordingModifier& b) {
  double largest = 0;
  for (const auto& [module, gram] : a.grams) {
    const at::Tensor& other = b.grams.at(module);
    largest = std::max(largest, ((gram - other).norm() / gram.norm()).item<double>());
  }
  return largest;
}

TEST(SequentialPipeline, DoesNotDependOnBatchesOrCuts) {
  RecordingSink sink;
  const RecordingModifier reference = run(run_sequential, "Layer", 6, sink);
  EXPECT_EQ(sink.compressed, 14);
  EXPECT_EQ(sink.done, (std::vector<std::string>{"head", "layers.0", "layers.1", "tail"}));
  EXPECT_EQ(reference.grams.size(), 14u);
  for (const auto& [module, tokens] : reference.tokens) EXPECT_EQ(tokens, 43) << module;
  for (const std::size_t per_batch : {1, 2, 4}) {
    RecordingSink other;
    EXPECT_LT(largest_difference(reference, run(run_sequential, "Layer", per_batch, other)), 1e-5) << per_batch;
  }
  RecordingSink cut, whole;
  EXPECT_LT(largest_difference(reference, run(run_sequential, "Linear", 2, cut)), 1e-5);
  EXPECT_LT(largest_difference(reference, run(run_sequential, "NoSuchClass", 2, whole)), 1e-5);
}

TEST(SequentialPipeline, LaterGroupsSeeTheErrorOfEarlierOnes) {
  RecordingSink first, second;
  const RecordingModifier sequential = run(run_sequential, "Layer", 3, first);
  const RecordingModifier basic = run(run_basic, "Layer", 3, second);
  EXPECT_EQ(second.compressed, 14);
  const auto difference = [&](const char* module) {
    return ((sequential.grams.at(module) - basic.grams.at(module)).norm() / basic.grams.at(module).norm())
        .item<double>();
  };
  EXPECT_LT(difference("layers.0.q"), 1e-6);  // nothing precedes it
  EXPECT_GT(difference("layers.0.o"), 1e-3);  // follows the compressed q, k, v of its own layer
  EXPECT_GT(difference("layers.1.down"), 1e-3);
}

TEST(DatafreePipeline, ShowsNoStatistics) {
  RecordingSink sink;
  const RecordingModifier modifier = run(run_datafree, "Layer", 1, sink);
  EXPECT_EQ(sink.compressed, 14);
  EXPECT_TRUE(modifier.grams.empty());
  EXPECT_EQ(sink.done.size(), 4u);
}

TEST(Pipelines, StopWhenAsked) {
  const SmallModel model;
  const std::atomic<bool> stop{true};
  const std::vector<Batch> batches = random_batches({4}, 1);
  PhaseTimes times;
  const RunContext context{model.graph, model.weights, {at::kCPU, at::kFloat}, batches, {nullptr, &stop}, times};
  RecordingSink sink;
  EXPECT_THROW(run_sequential(context, model.cut("Layer"), {}, sink), InterruptedError);
}

TEST(RunToValue, PackedSamplesEqualSamplesAlone) {
  const SmallModel model;
  PhaseTimes times;
  const auto logits = [&](std::size_t per_batch) {
    const std::vector<Batch> batches = random_batches({7, 1, 12}, per_batch);
    const RunContext context{model.graph, model.weights, {at::kCPU, at::kFloat}, batches, {}, times};
    return at::cat(run_to_value(context, model.cut("Layer"), model.graph.output));
  };
  EXPECT_TRUE(at::allclose(logits(3), logits(1), 1e-5, 1e-5));
}

TEST(CompressGroup, NamesATensorThatIsNotFinite) {
  SmallModel model;
  model.weights.tensors["layers.0.o.weight"][3][4] = NAN;
  RecordingModifier modifier;
  Assignments assignments;
  for (std::size_t n = 0; n < model.graph.nodes.size(); ++n)
    if (model.graph.module_name(model.graph.nodes[n]) == "layers.0.o")
      if (std::holds_alternative<graph::Linear>(model.graph.nodes[n].operation))
        assignments[static_cast<graph::NodeId>(n)] = {&modifier, &modifier.scheme, at::kFloat};
  PhaseTimes times;
  const std::vector<Batch> none;
  const RunContext context{model.graph, model.weights, {at::kCPU, at::kFloat}, none, {}, times};
  RecordingSink sink;
  try {
    run_datafree(context, model.cut("Layer"), assignments, sink);
    FAIL() << "accepted NaN";
  } catch (const CheckpointError& error) {
    EXPECT_NE(std::string(error.what()).find("layers.0.o.weight"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace layerpress::runtime
