#include "layerpress/residency/weight_prefetch.h"

#include <gtest/gtest.h>

#include <chrono>
#include <mutex>
#include <set>
#include <thread>

#include "layerpress/base/error.h"
#include "layerpress/pipeline/schedule_runner.h"
#include "layerpress/residency/pinned_weights.h"
#include "layerpress/schedule/pipelines.h"
#include "tests/execution/small_model.h"
#include "tests/pipeline/gram_users.h"
#include "tests/pipeline/no_sink.h"
#include "tests/pipeline/one_scheme_modifier.h"

namespace layerpress::pipeline {
namespace {

using namespace std::chrono_literals;

/// Weights from a slow disk: each takes a while to fetch.
class ThrottledWeights : public residency::WeightSource {
 public:
  ThrottledWeights(const residency::WeightSource& source, std::chrono::milliseconds delay)
      : source_(source), delay_(delay) {}
  at::Tensor load(const std::string& name) const override {
    const std::lock_guard lock(mutex_);
    if (fetched_.count(name) == 0) ADD_FAILURE() << name << " is used before it was read";
    return source_.load(name);
  }
  void will_need(const std::string&) const override {}
  void fetch(const std::string& name) const override {
    std::this_thread::sleep_for(delay_);
    if (name == broken) throw IoError("cannot read {}", name);
    const std::lock_guard lock(mutex_);
    fetched_.insert(name);
  }
  void release(const std::string& name) const override {
    const std::lock_guard lock(mutex_);
    fetched_.erase(name);
  }
  std::string broken;

 private:
  const residency::WeightSource& source_;
  std::chrono::milliseconds delay_;
  mutable std::mutex mutex_;
  mutable std::set<std::string> fetched_;
};

/// A modifier that takes its time and changes nothing worth mentioning.
class SlowModifier : public OneSchemeModifier {
 public:
  explicit SlowModifier(std::chrono::milliseconds delay)
      : OneSchemeModifier(channel_scheme(8, "int-quantized")), delay_(delay) {}
  std::vector<compression::CompressedModule> compress(const std::vector<compression::LinearWeight>& linears,
                                                      const compression::Statistics*, PhaseTimes&) const override {
    std::vector<compression::CompressedModule> results(linears.size());
    for (std::size_t i = 0; i < linears.size(); ++i) {
      std::this_thread::sleep_for(delay_);
      const at::Tensor scale = linears[i].weight.abs().amax(1, true) / 127;
      results[i].weight = {(linears[i].weight / scale).round().to(at::kChar), scale, {}};
    }
    return results;
  }

 private:
  std::chrono::milliseconds delay_;
};

/// Seconds of a sequential run over the small model: 14 linears are compressed and about as many weights fetched.
double run_seconds(std::chrono::milliseconds fetching, std::chrono::milliseconds computing,
                   const std::string& broken = "") {
  const test::SmallModel model;
  ThrottledWeights weights(model.weights, fetching);
  weights.broken = broken;
  const SlowModifier modifier(computing);
  compression::Assignments assignments;
  for (std::size_t n = 0; n < model.graph.nodes.size(); ++n)
    if (std::holds_alternative<graph::Linear>(model.graph.nodes[n].operation) &&
        model.graph.module_name(model.graph.nodes[n]) != "head")
      assignments.linears[static_cast<graph::NodeId>(n)] = {&modifier, &modifier.scheme, at::kFloat};
  const std::vector<execution::Batch> batches = test::random_batches({5, 9}, 2);
  PhaseTimes times;
  dist::Group alone;
  const execution::RunContext context{model.graph, weights, {at::kCPU, at::kFloat}, batches, {}, times, alone};
  const std::vector<graph::Subgraph> subgraphs = model.cut("Linear");
  const auto schedule = schedule::sequential_schedule({model.graph, subgraphs, assignments});
  residency::ActivationStore store(batches.size());
  NoSink sink;
  const Timer timer;
  run_schedule(context, schedule, assignments, store, sink);
  return timer.seconds();
}

TEST(WeightPrefetch, ReadsWhileComputing) {
  // 19 weights of 40 ms and 14 solves of 40 ms: side by side they take about 0.6 of what they take in turn. All of it is
  // sleep, so that a busy machine changes little.
  const double reading = run_seconds(40ms, 0ms), computing = run_seconds(0ms, 40ms), both = run_seconds(40ms, 40ms);
  EXPECT_GT(reading, 0.6);
  EXPECT_GT(computing, 0.5);
  EXPECT_LT(both, 0.8 * (reading + computing));
}

TEST(WeightPrefetch, HandsOnWhatGoesWrong) { EXPECT_THROW(run_seconds(0ms, 0ms, "layers.1.down.weight"), IoError); }

TEST(WeightPrefetch, EndsWithoutBeingWaitedFor) {
  const test::SmallModel model;
  const ThrottledWeights weights(model.weights, 200ms);
  const Timer timer;
  {
    residency::WeightPrefetch prefetch(weights);
    std::vector<std::string> names;
    for (const auto& [name, tensor] : model.weights.tensors) names.push_back(name);
    prefetch.start(names);
  }
  EXPECT_LT(timer.seconds(), 2.0);  // all of them take 3.8 s
}

TEST(PinnedWeights, AreCopiedWhenTheyAreFetched) {
  const test::SmallModel model;
  int pins = 0;
  const auto pin = [&](const at::Tensor& tensor) {
    ++pins;
    return tensor.clone();
  };
  const residency::PinnedWeights weights(model.weights, pin);
  const at::Tensor& stored = model.weights.tensors.at("embed.weight");
  EXPECT_TRUE(weights.load("embed.weight").is_same(stored)) << "nothing was fetched";
  residency::WeightPrefetch prefetch(weights);
  prefetch.start({"embed.weight"});
  prefetch.wait();
  EXPECT_EQ(pins, 1);
  const at::Tensor copy = weights.load("embed.weight");
  EXPECT_FALSE(copy.is_same(stored));
  EXPECT_TRUE(at::equal(copy, stored));
  EXPECT_TRUE(weights.load("embed.weight").is_same(copy));
  weights.release("embed.weight");
  EXPECT_TRUE(weights.load("embed.weight").is_same(stored));
}

}  // namespace
}  // namespace layerpress::pipeline
