#include <ATen/Parallel.h>
#include <c10/core/CPUAllocator.h>
#include <c10/util/Exception.h>
#include <gtest/gtest.h>

#include "layerpress/base/error.h"
#include "layerpress/compression/statistics/cross_statistic.h"
#include "layerpress/execution/body_run.h"
#include "layerpress/pipeline/schedule_runner.h"
#include "layerpress/quant/scheme.h"
#include "layerpress/schedule/pipelines.h"
#include "tests/checkpoint/temporary_folder.h"
#include "tests/execution/small_model.h"
#include "tests/pipeline/gram_users.h"
#include "tests/pipeline/one_scheme_modifier.h"

namespace layerpress::pipeline {
namespace {

/// Rounds every weight to nearest and remembers the Gram matrix it was shown for each module.
class RecordingModifier : public OneSchemeModifier {
 public:
  RecordingModifier() : OneSchemeModifier(channel_scheme(4)) {}
  std::vector<compression::StatisticPtr> statistics_wanted(const compression::ValueFacts& facts) const override {
    std::vector<compression::StatisticPtr> wanted = test::gram_only();
    if (wants_cross && facts.differs) wanted.push_back(std::make_shared<compression::CrossStatistic>());
    return wanted;
  }
  bool wants_original() const override { return wants_cross; }
  std::vector<compression::CompressedModule> compress(const std::vector<compression::LinearWeight>& linears,
                                                      const compression::Statistics* statistics,
                                                      PhaseTimes&) const override {
    std::vector<compression::CompressedModule> results;
    for (const compression::LinearWeight& linear : linears) {
      if (statistics != nullptr) grams[linear.module] = statistics->of("gram").triu().clone();
      if (statistics != nullptr) tokens[linear.module] = statistics->tokens;
      if (statistics != nullptr && statistics->of("cross").defined())
        grams["cross of " + linear.module] = statistics->of("cross").clone();
      compression::CompressedModule result;
      result.weight = rounded_by_channel(linear.weight, *scheme.weights);
      results.push_back(std::move(result));
    }
    return results;
  }
  bool wants_cross = false;
  mutable std::map<std::string, at::Tensor> grams;
  mutable std::map<std::string, std::int64_t> tokens;
};

class RecordingSink : public ResultSink {
 public:
  void on_compressed(const graph::Node&, const quant::QuantizationScheme&,
                     const compression::CompressedModule&) override {
    ++compressed;
  }
  void on_tensor(const std::string&, const at::Tensor&) override {}
  void on_subgraph_done(std::size_t index, const Json& boundary) override {
    done.push_back(index);
    boundaries.push_back(boundary);
  }
  std::optional<std::size_t> durable_subgraph() override {
    return done.empty() ? std::nullopt : std::optional(done.back());
  }
  int compressed = 0;
  std::vector<std::size_t> done;
  std::vector<Json> boundaries;
};

enum class Kind { kSequential, kTwoPass, kBasic, kDatafree };

struct PipelineSetting {
  Kind kind = Kind::kSequential;
  std::string targets = "Layer";
  std::size_t per_batch = 3;
  std::vector<bool> keep_after = {};  // for every subgraph
  residency::ActivationStore::Options activations = {};
  bool wants_cross = false;
  std::vector<std::int64_t> lengths = {5, 9, 1, 17, 8, 3};
  std::int64_t counted = 0;  // of each sample's tokens, the first ones; 0: all count, negative: the last ones
};

/// Batches of the setting's samples. Those that are shorter in another setting begin alike.
std::vector<execution::Batch> batches_of(const PipelineSetting& setting) {
  std::vector<execution::Batch> batches =
      test::random_batches(std::vector<std::int64_t>(setting.lengths.size(), 20), setting.per_batch);
  std::size_t sample = 0;
  for (execution::Batch& batch : batches) {
    std::vector<at::Tensor> ids;
    std::vector<std::int64_t> offsets{0};
    std::vector<std::uint8_t> mask;
    for (std::size_t i = 0; i + 1 < batch.offsets.size(); ++i, ++sample) {
      const std::int64_t length = setting.lengths[sample];
      ids.push_back(batch.token_ids.narrow(0, batch.offsets[i], length));
      offsets.push_back(offsets.back() + length);
      for (std::int64_t token = 0; token < length; ++token)
        mask.push_back(setting.counted >= 0 ? token < setting.counted : token >= length + setting.counted);
    }
    batch.token_ids = at::cat(ids);
    batch.offsets = offsets;
    if (setting.counted != 0) batch.count_only(mask);
  }
  return batches;
}

/// Runs a pipeline over all linears but the head; returns what the modifier saw.
RecordingModifier run(const PipelineSetting& setting, RecordingSink& sink) {
  const test::SmallModel model;
  RecordingModifier modifier;
  modifier.wants_cross = setting.wants_cross;
  compression::Assignments assignments;
  for (std::size_t n = 0; n < model.graph.nodes.size(); ++n)
    if (std::holds_alternative<graph::Linear>(model.graph.nodes[n].operation) &&
        model.graph.module_name(model.graph.nodes[n]) != "head")
      assignments.linears[static_cast<graph::NodeId>(n)] = {&modifier, &modifier.scheme, at::kFloat};
  const std::vector<execution::Batch> batches = batches_of(setting);
  PhaseTimes times;
  dist::Group alone;
  const execution::RunContext context{model.graph, model.weights, {at::kCPU, at::kFloat}, batches, {}, times, alone};
  const std::vector<graph::Subgraph> subgraphs = model.cut(setting.targets);
  schedule::ScheduleRequest request{model.graph, subgraphs, assignments};
  if (!setting.keep_after.empty()) request.keep_after.assign(subgraphs.size(), setting.keep_after);
  const auto make = setting.kind == Kind::kSequential ? schedule::sequential_schedule
                    : setting.kind == Kind::kTwoPass  ? schedule::two_pass_schedule
                    : setting.kind == Kind::kBasic    ? schedule::basic_schedule
                                                      : schedule::datafree_schedule;
  residency::ActivationStore store(batches.size(), setting.activations);
  run_schedule(context, make(request), assignments, store, sink);
  EXPECT_EQ(store.memory_bytes(), 0u);  // nothing outlives its last reader
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
  const RecordingModifier reference = run({.per_batch = 6}, sink);
  EXPECT_EQ(sink.compressed, 14);
  EXPECT_EQ(sink.done, (std::vector<std::size_t>{0, 1, 2, 3}));
  EXPECT_EQ(reference.grams.size(), 14u);
  for (const auto& [module, tokens] : reference.tokens) EXPECT_EQ(tokens, 43) << module;
  for (const std::size_t per_batch : {1, 2, 4}) {
    RecordingSink other;
    EXPECT_LT(largest_difference(reference, run({.per_batch = per_batch}, other)), 1e-5) << per_batch;
  }
  RecordingSink cut, whole;
  EXPECT_LT(largest_difference(reference, run({.targets = "Linear", .per_batch = 2}, cut)), 1e-5);
  EXPECT_LT(largest_difference(reference, run({.targets = "NoSuchClass", .per_batch = 2}, whole)), 1e-5);
}

TEST(Pipelines, OnlyMarkedTokensCountInStatistics) {
  for (const Kind kind : {Kind::kSequential, Kind::kTwoPass, Kind::kBasic}) {
    RecordingSink sink;
    // What comes later in a sample has no influence on its beginning.
    const RecordingModifier beginnings = run({.kind = kind, .lengths = {4, 4, 1, 4, 4, 3}}, sink);
    const RecordingModifier marked = run({.kind = kind, .counted = 4}, sink);
    EXPECT_EQ(marked.grams.size(), 14u);
    EXPECT_LT(largest_difference(beginnings, marked), 1e-5);
    for (const auto& [module, tokens] : marked.tokens) EXPECT_EQ(tokens, 20) << module;
    EXPECT_GT(largest_difference(run({.kind = kind}, sink), marked), 0.1);
    for (const auto& [module, tokens] : run({.kind = kind, .counted = -1}, sink).tokens) EXPECT_EQ(tokens, 6) << module;
  }
  RecordingSink sink;
  EXPECT_LT(largest_difference(run({.per_batch = 6, .wants_cross = true, .counted = 4}, sink),
                               run({.per_batch = 1, .wants_cross = true, .counted = 4}, sink)),
            1e-5);
}

/// The CPU's allocator, which fails once as a device's would.
class FailingAllocator : public at::Allocator {
 public:
  FailingAllocator() : inner_(c10::GetCPUAllocator()) { c10::SetCPUAllocator(this, kPriority); }
  ~FailingAllocator() override { c10::SetCPUAllocator(inner_, kPriority); }
  FailingAllocator(const FailingAllocator&) = delete;
  FailingAllocator& operator=(const FailingAllocator&) = delete;

  at::DataPtr allocate(std::size_t bytes) override {
    if (++count == fails_at)
      throw c10::OutOfMemoryError({__func__, __FILE__, static_cast<std::uint32_t>(__LINE__)}, "made up");
    return inner_->allocate(bytes);
  }
  void copy_data(void* target, const void* source, std::size_t bytes) const override {
    inner_->copy_data(target, source, bytes);
  }

  int count = 0, fails_at = 0;

 private:
  static constexpr std::uint8_t kPriority = 255;
  at::Allocator* inner_;
};

/// Lets every third allocation of a run fail, and compares with a run that had enough.
void run_with_failures(const PipelineSetting& setting) {
  at::set_num_threads(1);  // allocations come in one order
  RecordingSink first;
  const RecordingModifier expected = run(setting, first);
  FailingAllocator allocator;
  RecordingSink counted;
  run(setting, counted);
  const int allocations = allocator.count;
  int survived = 0, tries = 0;
  for (int n = 1; n <= allocations; n += 3, ++tries) {
    allocator.count = 0;
    allocator.fails_at = n;
    RecordingSink sink;
    try {
      const RecordingModifier found = run(setting, sink);
      EXPECT_LT(largest_difference(expected, found), 1e-5) << "allocation " << n;
      EXPECT_EQ(found.tokens, expected.tokens) << "allocation " << n;
      EXPECT_EQ(sink.compressed, 14);
      ++survived;
    } catch (const MemoryError&) {            // while statistics were added to
    } catch (const c10::OutOfMemoryError&) {  // outside of the calibration
    }
  }
  EXPECT_GT(survived, tries / 4) << "of " << tries;
}

TEST(SequentialPipeline, GoesOnInPiecesWhenMemoryRunsOut) { run_with_failures({}); }

TEST(SequentialPipeline, GoesOnInPiecesBesideTheOriginalModel) {
  RecordingSink sink;
  ASSERT_GT(run({.wants_cross = true}, sink).grams.count("cross of layers.1.down"), 0u);
  run_with_failures({.wants_cross = true});
}

TEST(SequentialPipeline, ComputingAgainGivesTheSameBits) {
  RecordingSink first;
  const RecordingModifier kept = run({}, first);
  for (int bits = 0; bits < 16; ++bits) {
    RecordingSink sink;
    const RecordingModifier again =
        run({.keep_after = {(bits & 1) != 0, (bits & 2) != 0, (bits & 4) != 0, (bits & 8) != 0}}, sink);
    EXPECT_EQ(largest_difference(kept, again), 0) << bits;
    EXPECT_EQ(again.grams.size(), 14u);
  }
}

TEST(SequentialPipeline, SpillingGivesTheSameBits) {
  RecordingSink first;
  const RecordingModifier kept = run({}, first);
  for (const std::uint64_t limit : {0u, 3000u, 20000u}) {
    const test::TemporaryFolder folder;
    RecordingSink sink;
    residency::ActivationStore::Options options;
    options.memory_limit = limit;
    options.scratch = folder / "scratch";
    const RecordingModifier spilled = run({.activations = options}, sink);
    EXPECT_EQ(largest_difference(kept, spilled), 0) << limit;
    if (limit == 0) {
      EXPECT_FALSE(sink.boundaries.at(1).is_null());
    }
  }
  RecordingSink sink;
  residency::ActivationStore::Options small;
  small.memory_limit = 3000;
  EXPECT_THROW(run({.activations = small}, sink), MemoryError);
}

TEST(SequentialPipeline, LaterGroupsSeeTheErrorOfEarlierOnes) {
  RecordingSink first, second;
  const RecordingModifier sequential = run({}, first);
  const RecordingModifier basic = run({.kind = Kind::kBasic}, second);
  EXPECT_EQ(second.compressed, 14);
  const auto difference = [&](const char* module) {
    return ((sequential.grams.at(module) - basic.grams.at(module)).norm() / basic.grams.at(module).norm())
        .item<double>();
  };
  EXPECT_LT(difference("layers.0.q"), 1e-6);  // nothing precedes it
  EXPECT_GT(difference("layers.0.o"), 1e-3);  // follows the compressed q, k, v of its own layer
  EXPECT_GT(difference("layers.1.down"), 1e-3);
}

TEST(TwoPassPipeline, CollectsBeforeALayerIsCompressed) {
  RecordingSink first, second, third;
  const RecordingModifier sequential = run({}, first);
  const RecordingModifier basic = run({.kind = Kind::kBasic}, second);
  const RecordingModifier two_pass = run({.kind = Kind::kTwoPass}, third);
  EXPECT_EQ(third.compressed, 14);
  const auto difference = [&](const RecordingModifier& other, const char* module) {
    return ((two_pass.grams.at(module) - other.grams.at(module)).norm() / other.grams.at(module).norm()).item<double>();
  };
  for (const char* module : {"layers.0.q", "layers.0.o", "layers.0.gate", "layers.0.down"})
    EXPECT_LT(difference(basic, module), 1e-6) << module;
  EXPECT_LT(difference(sequential, "layers.1.q"), 1e-6);  // behind the compressed first layer
  EXPECT_GT(difference(basic, "layers.1.q"), 1e-3);
  EXPECT_GT(difference(sequential, "layers.1.o"), 1e-3);
  EXPECT_GT(difference(sequential, "layers.1.down"), 1e-3);
}

TEST(TwoPassPipeline, DoesNotDependOnBatchesOrStorage) {
  RecordingSink first, crossed;
  const RecordingModifier reference = run({.kind = Kind::kTwoPass, .per_batch = 6}, first);
  const RecordingModifier original = run({.kind = Kind::kTwoPass, .wants_cross = true}, crossed);
  EXPECT_GT(original.grams.count("cross of layers.1.down"), 0u);
  for (const bool keeps : {false, true}) {
    const test::TemporaryFolder folder;
    residency::ActivationStore::Options options;
    options.memory_limit = 3000;
    options.scratch = folder / "scratch";
    RecordingSink sink, other;
    EXPECT_LT(largest_difference(reference,
                                 run({.kind = Kind::kTwoPass, .keep_after = {keeps}, .activations = options}, sink)),
              1e-5);
    EXPECT_LT(
        largest_difference(
            original, run({.kind = Kind::kTwoPass, .per_batch = 1, .keep_after = {keeps}, .wants_cross = true}, other)),
        1e-5);
  }
}

TEST(DatafreePipeline, ShowsNoStatistics) {
  RecordingSink sink;
  const RecordingModifier modifier = run({.kind = Kind::kDatafree, .per_batch = 1}, sink);
  EXPECT_EQ(sink.compressed, 14);
  EXPECT_TRUE(modifier.grams.empty());
  EXPECT_EQ(sink.done.size(), 4u);
}

TEST(Pipelines, StopWhenAsked) {
  const test::SmallModel model;
  const std::atomic<bool> stop{true};
  const std::vector<execution::Batch> batches = test::random_batches({4}, 1);
  PhaseTimes times;
  dist::Group alone;
  const execution::RunContext context{
      model.graph, model.weights, {at::kCPU, at::kFloat}, batches, {nullptr, &stop, nullptr}, times, alone};
  RecordingSink sink;
  const std::vector<graph::Subgraph> subgraphs = model.cut("Layer");
  residency::ActivationStore store(1);
  EXPECT_THROW(run_schedule(context, schedule::sequential_schedule({model.graph, subgraphs, {}}), {}, store, sink),
               InterruptedError);
}

TEST(BodyRun, PackedSamplesEqualSamplesAlone) {
  const test::SmallModel model;
  PhaseTimes times;
  const auto logits = [&](std::size_t per_batch) {
    const std::vector<execution::Batch> batches = test::random_batches({7, 1, 12}, per_batch);
    dist::Group alone;
    const execution::RunContext context{model.graph, model.weights, {at::kCPU, at::kFloat}, batches, {}, times, alone};
    execution::BodyRun body(context, model.cut("Layer"), model.graph.output);
    for (std::size_t s = 0; s < body.size(); ++s) body.run(s);
    return at::cat(body.results());
  };
  EXPECT_TRUE(at::allclose(logits(3), logits(1), 1e-5, 1e-5));
}

TEST(CompressGroup, NamesATensorThatIsNotFinite) {
  test::SmallModel model;
  model.weights.tensors["layers.0.o.weight"][3][4] = NAN;
  RecordingModifier modifier;
  compression::Assignments assignments;
  for (std::size_t n = 0; n < model.graph.nodes.size(); ++n)
    if (model.graph.module_name(model.graph.nodes[n]) == "layers.0.o")
      if (std::holds_alternative<graph::Linear>(model.graph.nodes[n].operation))
        assignments.linears[static_cast<graph::NodeId>(n)] = {&modifier, &modifier.scheme, at::kFloat};
  PhaseTimes times;
  const std::vector<execution::Batch> none;
  dist::Group alone;
  const execution::RunContext context{model.graph, model.weights, {at::kCPU, at::kFloat}, none, {}, times, alone};
  RecordingSink sink;
  residency::ActivationStore store(0);
  try {
    run_schedule(context, schedule::datafree_schedule({model.graph, model.cut("Layer"), assignments}), assignments,
                 store, sink);
    FAIL() << "accepted NaN";
  } catch (const CheckpointError& error) {
    EXPECT_NE(std::string(error.what()).find("layers.0.o.weight"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace layerpress::pipeline
