#include "layerpress/pipeline/sinks/background_sink.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>

#include "layerpress/base/error.h"
#include "tests/execution/small_model.h"

namespace layerpress::pipeline {
namespace {

using namespace std::chrono_literals;

/// Notes what it gets, slowly.
class NotingSink : public ResultSink {
 public:
  bool owns(graph::NodeId node) const override { return node == 3; }
  void on_compressed(const graph::Node&, const quant::QuantizationScheme&,
                     const compression::CompressedModule& result) override {
    std::this_thread::sleep_for(2ms);
    if (result.report.module == broken) throw IoError("no space for {}", broken);
    notes.push_back(result.report.module + " " + std::to_string(result.weight.codes.sum().item<int>()));
    ++count;
  }
  void on_tensor(const std::string&, const at::Tensor&) override {}
  void on_subgraph_done(std::size_t index, const Json& boundary) override {
    notes.push_back("subgraph " + std::to_string(index) + " " + boundary.dump());
  }
  std::optional<std::size_t> durable_subgraph() override { return 5; }

  std::string broken;
  std::vector<std::string> notes;
  std::atomic<int> count{0};
};

struct Results {
  test::SmallModel model;
  quant::QuantizationScheme scheme;

  void hand_to(ResultSink& sink, const std::string& module, int code) const {
    compression::CompressedModule result;
    result.weight = {at::full({4, 8}, code, at::kChar), at::ones({4, 1}), {}};
    result.report.module = module;
    sink.on_compressed(model.graph.nodes.front(), scheme, result);
  }
};

TEST(BackgroundSink, HandsEverythingOnInOrder) {
  const Results results;
  NotingSink sink;
  BackgroundSink background(sink, nullptr);
  for (int i = 0; i < 5; ++i) results.hand_to(background, "m", i);
  background.on_subgraph_done(7, {{"a", 1}});
  results.hand_to(background, "n", 1);
  background.finish();
  EXPECT_EQ(sink.notes,
            (std::vector<std::string>{"m 0", "m 32", "m 64", "m 96", "m 128", "subgraph 7 {\"a\":1}", "n 32"}));
  EXPECT_TRUE(background.owns(3));
  EXPECT_FALSE(background.owns(4));
  EXPECT_EQ(background.durable_subgraph(), 5u);
}

TEST(BackgroundSink, ReportsErrorsThatADeviceHasComputed) {
  /// Keeps the errors.
  struct ErrorSink : NotingSink {
    void on_compressed(const graph::Node&, const quant::QuantizationScheme&,
                       const compression::CompressedModule& result) override {
      errors.push_back(result.report.weight_error);
    }
    std::vector<double> errors;
  } sink;
  const Results results;
  BackgroundSink background(sink, nullptr);
  for (const bool later : {false, true}) {
    compression::CompressedModule result;
    result.weight = {at::zeros({4, 8}, at::kChar), at::ones({4, 1}), {}};
    result.report.weight_error = 0.25;
    if (later) result.weight_error = at::full({}, 0.5, at::kDouble);
    background.on_compressed(results.model.graph.nodes.front(), results.scheme, result);
  }
  background.finish();
  EXPECT_EQ(sink.errors, (std::vector<double>{0.25, 0.5}));
}

TEST(BackgroundSink, HoldsNoMoreThanItMay) {
  const Results results;
  NotingSink sink;
  BackgroundSink background(sink, nullptr, /*most_bytes=*/2 * (32 + 16));
  for (int i = 0; i < 20; ++i) {
    results.hand_to(background, "m", 0);
    EXPECT_GE(sink.count, i - 2) << "more than two wait";
  }
  BackgroundSink narrow(sink, nullptr, /*most_bytes=*/1);
  results.hand_to(narrow, "m", 0);  // alone, although it is larger
  narrow.finish();
  EXPECT_GE(sink.count, 1);
}

TEST(BackgroundSink, AFailureComesOutOfTheNextCallAndEndsTheWork) {
  const Results results;
  NotingSink sink;
  sink.broken = "b";
  {
    BackgroundSink background(sink, nullptr);
    results.hand_to(background, "a", 0);
    results.hand_to(background, "b", 0);
    results.hand_to(background, "c", 0);
    EXPECT_THROW(background.finish(), IoError);
    EXPECT_EQ(sink.notes, (std::vector<std::string>{"a 0"}));
    results.hand_to(background, "d", 0);
  }
  EXPECT_EQ(sink.notes.size(), 1u) << "nothing follows what failed";
}

TEST(BackgroundSink, WhatWasHandedOverIsDoneWhenTheRunEndsEarly) {
  const Results results;
  NotingSink sink;
  {
    BackgroundSink background(sink, nullptr);
    for (int i = 0; i < 4; ++i) results.hand_to(background, "m", 0);
  }
  EXPECT_EQ(sink.count, 4);
}

}  // namespace
}  // namespace layerpress::pipeline
