#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <limits>

#include "layerpress/kernels/products/gram.h"
#include "layerpress/modifier/quantizing/gptq.h"
#include "tests/base/heap_meter.h"
#include "tests/kernels/host_solver.h"

// Groups that are compressed at once, with a device's solver on the host.
namespace layerpress::modifier {
namespace {

kernels::ColumnBlockSolver on_host(at::Device) { return kernels::test::solve_on_host; }
kernels::ColumnBlockSolver nowhere(at::Device) { return nullptr; }

Json in_groups(Json weights, const Json& extra = Json::object()) {
  weights.update({{"num_bits", 4}, {"strategy", "group"}, {"group_size", 32}});
  Json arguments = {{"config_groups", {{"group_0", {{"targets", {"Linear"}}, {"weights", weights}}}}}};
  arguments.update(extra);
  return arguments;
}

/// Experts, each with its own inputs.
struct Experts {
  std::unique_ptr<compression::Quantizer> modifier;
  std::vector<compression::Statistics> statistics;
  std::vector<std::vector<compression::LinearWeight>> linears;

  Experts(const Json& arguments, std::size_t count, std::vector<std::int64_t> rows, std::int64_t columns,
          BlockSolverOf solver = on_host)
      : modifier(make_gptq_modifier(arguments, "test", solver)) {
    at::manual_seed(81);
    const quant::QuantizationScheme* scheme = modifier->scheme_for({"m", {"Linear"}});
    for (std::size_t e = 0; e < count; ++e) {
      const at::Tensor x = at::randn({2 * columns, columns}) * (at::rand({columns}) + 0.1);
      statistics.push_back({{{"gram", at::zeros({columns, columns})}}, static_cast<std::int64_t>(10 + e)});
      kernels::accumulate_gram(statistics.back().figures["gram"], x);
      linears.emplace_back();
      for (std::size_t i = 0; i < rows.size(); ++i)
        linears.back().push_back({fmt::format("expert{}.linear{}", e, i),
                                  at::randn({rows[i], columns}).to(at::kBFloat16), scheme, at::kBFloat16});
    }
  }

  std::vector<compression::CompressionTask> tasks() const {
    std::vector<compression::CompressionTask> tasks;
    for (std::size_t e = 0; e < linears.size(); ++e) tasks.push_back({linears[e], &statistics[e]});
    return tasks;
  }

  std::vector<compression::LinearShape> shapes() const {
    std::vector<compression::LinearShape> shapes;
    for (const compression::LinearWeight& linear : linears.front())
      shapes.push_back({linear.weight.size(0), linear.weight.size(1), linear.scale_dtype, linear.scheme});
    return shapes;
  }
};

double equal_share(const at::Tensor& a, const at::Tensor& b) { return a.eq(b).to(at::kDouble).mean().item<double>(); }

void compare(const Experts& experts) {
  PhaseTimes times, alone_times;
  const auto together = experts.modifier->compress_together(experts.tasks(), times);
  ASSERT_EQ(together.size(), experts.linears.size());
  for (std::size_t e = 0; e < together.size(); ++e) {
    const auto alone = experts.modifier->compress(experts.linears[e], &experts.statistics[e], alone_times);
    ASSERT_EQ(together[e].size(), alone.size());
    for (std::size_t i = 0; i < alone.size(); ++i) {
      const compression::CompressedModule &found = together[e][i], &expected = alone[i];
      // Ties that rounding decides otherwise move the rest of their row.
      EXPECT_GT(equal_share(found.weight.codes, expected.weight.codes), 0.99) << found.report.module;
      EXPECT_GT(equal_share(found.weight.scale, expected.weight.scale), 0.97) << found.report.module;
      EXPECT_EQ(found.weight.zero_point.defined(), expected.weight.zero_point.defined());
      EXPECT_EQ(found.report.module, experts.linears[e][i].module);
      EXPECT_EQ(found.report.scheme, expected.report.scheme);
      EXPECT_EQ(found.report.fallback, expected.report.fallback);
      EXPECT_EQ(found.report.tokens, expected.report.tokens);
      ASSERT_EQ(found.report.output_error.has_value(), expected.report.output_error.has_value());
      if (found.report.output_error) {
        EXPECT_NEAR(*found.report.output_error / *expected.report.output_error, 1, 3e-3);
      }
    }
  }
  EXPECT_EQ(times.phases().at("solve").flops, alone_times.phases().at("solve").flops);
}

TEST(GptqTogether, IsWhatEachGroupIsAlone) {
  for (const bool symmetric : {true, false})
    for (const char* observer : {"hessian", "minmax", "gptq"})
      compare({in_groups({{"symmetric", symmetric}}, {{"observer", observer}}), 4, {24, 40}, 160});
  compare({{{"scheme", "FP8_DYNAMIC"}}, 3, {20}, 96});
  compare({{{"scheme", "FP8_BLOCK"}}, 3, {128, 256}, 256});
}

TEST(GptqTogether, GroupsThatNeedAFallbackGetTheirOwn) {
  Experts experts(in_groups({}, {{"observer", "minmax"}}), 5, {24, 40}, 64);
  at::Tensor hard = at::eye(64), impossible = at::eye(64), infinite = at::eye(64);
  hard[1][2] = 1.04;
  impossible[1][2] = 1e6;
  infinite[3][3] = std::numeric_limits<float>::infinity();
  experts.statistics[0].figures["gram"] = hard;
  experts.statistics[2].figures["gram"] = impossible;
  experts.statistics[3].figures["gram"] = infinite;
  experts.statistics[4].figures["gram"] = at::zeros({64, 64});
  experts.statistics[4].tokens = 0;
  compare(experts);
  PhaseTimes times;
  const auto results = experts.modifier->compress_together(experts.tasks(), times);
  EXPECT_EQ(results[0][0].report.fallback, "dampening 0.1");
  EXPECT_EQ(results[1][0].report.fallback, "");
  EXPECT_EQ(results[2][1].report.fallback, "round-to-nearest (factorization failed)");
  EXPECT_EQ(results[3][0].report.fallback, "round-to-nearest (non-finite inputs)");
  EXPECT_EQ(results[4][0].report.fallback, "round-to-nearest (no tokens, or nothing but zeros)");
}

TEST(GptqTogether, RefusesScalesThatOverflow) {
  Experts experts({{"scheme", "W4A16"}, {"observer", "gptq"}}, 2, {16}, 128);
  experts.linears[1][0].weight = at::full({16, 128}, 1e38);
  experts.linears[1][0].scale_dtype = experts.linears[0][0].scale_dtype = at::kHalf;
  PhaseTimes times;
  try {
    experts.modifier->compress_together(experts.tasks(), times);
    FAIL();
  } catch (const RecipeError& error) {
    EXPECT_NE(std::string(error.what()).find("expert1.linear0"), std::string::npos) << error.what();
  }
}

TEST(GptqTogether, OnlyWhereADeviceSolvesGroupsAlike) {
  const auto at_once = [](const Json& arguments, std::vector<std::int64_t> rows, BlockSolverOf solver = on_host) {
    const Experts experts(arguments, 1, std::move(rows), 256, solver);
    return experts.modifier->tasks_at_once(experts.shapes());
  };
  const Json plain = in_groups({});
  EXPECT_EQ(at_once(plain, {384, 128}), (1u << 26) / (512 * 256));
  EXPECT_EQ(at_once(plain, {384, 128}, nowhere), 1u);
  EXPECT_EQ(at_once(in_groups({}, {{"error_propagation", true}}), {384, 128}), 1u);
  EXPECT_EQ(at_once({{"scheme", "FP8_BLOCK"}}, {384, 100}), 1u);
  const Json whole = {{"num_bits", 8}, {"type", "float"}, {"strategy", "tensor"}};
  const Json one_scale = {{"config_groups", {{"group_0", {{"targets", {"Linear"}}, {"weights", whole}}}}}};
  EXPECT_EQ(at_once(one_scale, {384, 128}), 1u);  // blocks of other sizes
  EXPECT_GT(at_once(one_scale, {384}), 1u);
}

TEST(GptqTogether, TakesNoMoreThanItsPlan) {
  LAYERPRESS_SKIP_WITHOUT_HEAP_METER();
  for (const char* observer : {"hessian", "gptq"}) {
    const Experts experts(in_groups({}, {{"observer", observer}}), 4, {256, 384}, 768);
    PhaseTimes times;
    experts.modifier->compress_together(experts.tasks(), times);  // buffers that the libraries keep
    const std::uint64_t before = heap_meter::held_bytes();
    heap_meter::restart_peak();
    const auto results = experts.modifier->compress_together(experts.tasks(), times);
    const auto planned = static_cast<double>(experts.modifier->workspace_together(experts.shapes(), 4));
    const auto peak = static_cast<double>(heap_meter::peak_bytes() - before);
    EXPECT_LT(peak, 1.03 * planned + (1 << 20)) << observer;  // buffers of late threads
    EXPECT_GT(peak, 0.5 * planned) << observer;
  }
}

}  // namespace
}  // namespace layerpress::modifier
