// The speeds that ranks divide work by.
#include "layerpress/plan/division_rates.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <variant>

#include "layerpress/model/blocks/architecture.h"
#include "layerpress/modifier/all_modifiers.h"
#include "layerpress/plan/machine_rates.h"
#include "tests/dist/thread_ranks.h"
#include "tests/modifier/quantizers.h"

namespace layerpress::plan {
namespace {

setup::RunSetup on_device(at::Device device, int threads) {
  setup::RunSetup run;
  run.placement.device = device;
  run.threads = threads;
  return run;
}

TEST(DivisionRates, AreConstantsOnACpu) {
  const auto measure = [](const setup::RunSetup&, dist::Group&) -> dist::DivisionRates {
    ADD_FAILURE() << "measured";
    return {};
  };
  const auto errors = dist::run_ranks(2, [&](dist::Group& group) {
    const auto rates = agreed_division_rates(on_device(at::kCPU, group.is_first() ? 4 : 3), group, measure);
    EXPECT_EQ(rates.update_flops, 3 * dist::DivisionRates().update_flops);
    EXPECT_EQ(rates.network_bytes, dist::DivisionRates().network_bytes);
  });
  EXPECT_EQ(errors, std::vector<std::string>(2));
}

TEST(DivisionRates, AreTheSlowestRanksOnADevice) {
  const auto measure = [](const setup::RunSetup&, dist::Group& group) -> dist::DivisionRates {
    if (group.is_first()) return {.update_flops = 2e13, .network_bytes = 3e11, .operation_seconds = 1e-5};
    return {.update_flops = 3e13, .network_bytes = 2e11, .operation_seconds = 2e-5};
  };
  const auto errors = dist::run_ranks(2, [&](dist::Group& group) {
    const auto rates = agreed_division_rates(on_device({at::kCUDA, 0}, 4), group, measure);
    EXPECT_EQ(rates.update_flops, 2e13);
    EXPECT_EQ(rates.network_bytes, 2e11);
    EXPECT_NEAR(rates.operation_seconds, 2e-5, 1e-9);
  });
  EXPECT_EQ(errors, std::vector<std::string>(2));
}

TEST(DivisionRates, AreMeasuredWithTheRunsModifiers) {
  const Json config = {{"architectures", {"LlamaForCausalLM"}},
                       {"model_type", "llama"},
                       {"hidden_size", 64},
                       {"intermediate_size", 128},
                       {"num_hidden_layers", 1},
                       {"num_attention_heads", 2},
                       {"vocab_size", 96},
                       {"tie_word_embeddings", false}};
  const auto modifier = test::make_quantizer("GPTQModifier", {{"targets", {"Linear"}}, {"scheme", "W4A16"}}, "test");
  setup::RunSetup run = on_device(at::kCPU, 1);
  run.model.traced = model::trace_model(config);
  const graph::Graph& graph = run.model.traced.graph;
  for (graph::NodeId n = 0; n < static_cast<graph::NodeId>(graph.nodes.size()); ++n)
    if (std::holds_alternative<graph::Linear>(graph.nodes[n].operation))
      run.assignments.linears[n] = {
          modifier.get(), modifier->scheme_for({graph.module_name(graph.nodes[n]), {"Linear"}}), at::kFloat, at::kCPU};
  const ModifierRates modifiers = measure_modifiers(run);
  double slowest = std::numeric_limits<double>::infinity(), fastest = 0;
  for (const auto& [phase, rate] : modifiers.by_phase)
    slowest = std::min(slowest, rate), fastest = std::max(fastest, rate);
  EXPECT_GE(modifiers.all, slowest);
  EXPECT_LE(modifiers.all, fastest);
  const auto errors = dist::run_ranks(2, [&](dist::Group& group) {
    const dist::DivisionRates rates = measured_division_rates(run, group);
    EXPECT_GT(rates.update_flops, 1e7);
    EXPECT_NE(rates.update_flops, dist::DivisionRates().update_flops);
    EXPECT_GT(rates.network_bytes, 1e6);
    EXPECT_LT(rates.operation_seconds, 1);
    EXPECT_GT(rates.operation_seconds, 1e-8);
  });
  EXPECT_EQ(errors, std::vector<std::string>(2));
}

}  // namespace
}  // namespace layerpress::plan
