#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <gtest/gtest.h>

#include <mutex>

#include "layerpress/compression/statistics/mean_absolute.h"
#include "layerpress/compression/statistics/minimum_maximum.h"
#include "layerpress/compression/statistics/output_cross_statistic.h"
#include "layerpress/kernels/products/gram.h"
#include "layerpress/pipeline/divided_compression.h"
#include "layerpress/pipeline/schedule_runner.h"
#include "layerpress/pipeline/statistics_store.h"
#include "layerpress/quant/rounding/row_transfer.h"
#include "layerpress/schedule/group_division.h"
#include "tests/dist/thread_ranks.h"
#include "tests/execution/small_model.h"
#include "tests/kernels/plain_products.h"
#include "tests/pipeline/gram_users.h"
#include "tests/pipeline/one_scheme_modifier.h"

namespace layerpress::pipeline {
namespace {

// ---- who gets which rows

struct Case {
  std::vector<std::int64_t> rows, steps;
};

TEST(SplitRows, CoversEveryRowOnceInOrderAtAllowedPlaces) {
  for (const Case& given : {Case{{576, 192, 192}, {1, 1, 1}}, Case{{1536, 1536}, {128, 128}}, Case{{100}, {1}},
                            Case{{7, 5}, {1, 1}}, Case{{64, 64, 64}, {0, 0, 0}}, Case{{300, 48}, {10, 0}}})
    for (int ranks = 1; ranks <= 9; ++ranks) {
      const auto parts = schedule::split_rows(given.rows, given.steps, ranks);
      ASSERT_EQ(parts.size(), static_cast<std::size_t>(ranks));
      std::size_t linear = 0;
      std::int64_t next = 0;
      for (const auto& own : parts)
        for (const schedule::RowPart& part : own) {
          if (next == given.rows[linear]) ++linear, next = 0;
          EXPECT_EQ(part.linear, linear);
          EXPECT_EQ(part.first, next);
          EXPECT_GT(part.rows(), 0);
          const std::int64_t step = given.steps[linear];
          if (step == 0)
            EXPECT_EQ(part.rows(), given.rows[linear]);
          else
            EXPECT_EQ(part.first % step, 0);
          next = part.last;
        }
      EXPECT_EQ(linear, given.rows.size() - 1);
      EXPECT_EQ(next, given.rows.back());
    }
}

TEST(SplitRows, IsEvenUpToATile) {
  for (const int ranks : {2, 3, 4, 8}) {
    for (const auto& own : schedule::split_rows({4096, 1024, 1024}, {1, 1, 1}, ranks)) {
      std::int64_t rows = 0;
      for (const schedule::RowPart& part : own) rows += part.rows();
      EXPECT_NEAR(static_cast<double>(rows), 6144.0 / ranks, 16);
    }
  }
}

// ---- sums over ranks

const compression::GramStatistic kTriangle;

TEST(TriangleStrips, CoverTheTriangleInSmallPieces) {
  for (const int ranks : {2, 3, 64})
    for (const std::int64_t features : {1, 191, 192, 193, 1536, 14336, 53248}) {
      std::int64_t next = 0;
      for (const dist::Slice& strip : strips_of(kTriangle, features)) {
        EXPECT_EQ(strip.first, next);
        EXPECT_EQ(strip.first % kernels::kGramRowStep, 0);
        next = strip.last;
      }
      EXPECT_EQ(next, features);
      const auto matrix = static_cast<double>(features) * static_cast<double>(features) * 4;
      const auto workspace = static_cast<double>(merge_workspace_bytes(test::gram_only(), features, ranks));
      const double copies = ranks == 2 ? 2 : 1;  // of a strip
      EXPECT_LT(workspace, copies * std::max(10e6, 0.2 * matrix)) << features << " on " << ranks;
    }
  EXPECT_EQ(merge_workspace_bytes(test::gram_only(), 1536, 1), 0u);
}

/// A graph with one value of `features`.
graph::Graph graph_of(std::int64_t features) {
  graph::Tracer tracer;
  return tracer.finish(tracer.linear("head", tracer.embedding("embed", tracer.tokens(), 8, features), 8));
}

constexpr std::int64_t kWideFeatures = 1700;  // more than one strip

/// Small integers, whose sums are exact.
at::Tensor part_of_rank(int rank) {
  at::Generator generator = at::make_generator<at::CPUGeneratorImpl>(static_cast<std::uint64_t>(rank));
  return at::randint(-4, 5, {40 + 8 * rank, kWideFeatures}, generator).to(at::kBFloat16);
}

at::Tensor merged(int ranks, int root, bool one_is_empty) {
  const graph::Graph graph = graph_of(kWideFeatures);
  at::Tensor result;
  std::mutex mutex;
  const auto errors = dist::run_ranks(ranks, [&](dist::Group& group) {
    const test::SmallModel model;
    const std::vector<execution::Batch> batches;
    PhaseTimes times;
    const execution::RunContext run{graph, model.weights, {at::kCPU, at::kBFloat16}, batches, {}, times, group, {}, 77};
    StatisticsStore statistics;
    const at::Tensor x = part_of_rank(group.rank());
    const compression::StatisticPtr gram = test::gram_only().front();
    if (one_is_empty && group.rank() == 1) {
      statistics.add_last_and_merge(run, 1, {{gram, {}, root}});
    } else {
      statistics.add(run, 1, {{gram, {{x.slice(0, 0, 16)}}}});
      statistics.add_last_and_merge(run, 1, {{gram, {{x.slice(0, 16)}}, root}});
    }
    statistics.finish_merging(run);
    EXPECT_EQ(statistics.get(1).tokens, 77);
    const std::lock_guard lock(mutex);
    const at::Tensor own = statistics.get(1).of("gram").triu();
    EXPECT_TRUE(root != Contribution::kAllRanks || !result.defined() || at::equal(result, own));
    if (root == Contribution::kAllRanks || group.rank() == root) result = own;
  });
  EXPECT_EQ(errors, std::vector<std::string>(static_cast<std::size_t>(ranks)));
  return result;
}

at::Tensor expected_sum(const std::vector<int>& ranks) {
  at::Tensor sum = at::zeros({kWideFeatures, kWideFeatures}, at::kDouble);
  for (const int rank : ranks) sum += kernels::plain_gram(part_of_rank(rank));
  return sum.triu().to(at::kFloat);
}

TEST(StatisticsStore, AddsUpOverRanks) {
  ASSERT_GT(strips_of(kTriangle, kWideFeatures).size(), 1u);
  EXPECT_TRUE(at::equal(merged(3, Contribution::kAllRanks, false), expected_sum({0, 1, 2})));
  EXPECT_TRUE(at::equal(merged(2, Contribution::kAllRanks, true), expected_sum({0})));
  EXPECT_TRUE(at::equal(merged(3, 2, false), expected_sum({0, 1, 2})));
}

/// Rows of a weight, whose output cross matrix has more than one strip.
constexpr std::int64_t kRows = 800;

compression::StatisticInput input_of(const at::Tensor& x, const at::Tensor& bias) {
  const at::Tensor stream = x.narrow(1, 0, kRows);
  return {{x, stream, stream * 3, stream}, bias};
}

/// E = 2 (r - 1) + 2 r, in small integers.
at::Tensor expected_output_cross(int rank) {
  const at::Tensor x = part_of_rank(rank).to(at::kDouble);
  return (4 * x.narrow(1, 0, kRows) - 2).t().mm(x);
}

TEST(StatisticsStore, AddsUpOutputsOverRanks) {
  const auto outputs = std::make_shared<compression::OutputCrossStatistic>(
      graph::ResidualWrite{.bias = "bias", .rows = kRows, .stream = 1, .output = 2}, 2, 1);
  ASSERT_GT(strips_of(*outputs, kWideFeatures).size(), 1u);
  const graph::Graph graph = graph_of(kWideFeatures);
  const at::Tensor bias = at::ones(kRows, at::kBFloat16);
  const at::Tensor expected = expected_output_cross(0) + expected_output_cross(2);
  const auto errors = dist::run_ranks(3, [&](dist::Group& group) {
    const test::SmallModel model;
    const std::vector<execution::Batch> batches;
    PhaseTimes times;
    const execution::RunContext run{graph, model.weights, {at::kCPU, at::kBFloat16}, batches, {}, times, group, {}, 77};
    StatisticsStore statistics;
    const at::Tensor x = part_of_rank(group.rank());
    if (group.rank() == 1) {
      statistics.add_last_and_merge(run, 1, {{outputs}});
    } else {
      statistics.add(run, 1, {{outputs, input_of(x.slice(0, 0, 16), bias)}});
      statistics.add_last_and_merge(run, 1, {{outputs, input_of(x.slice(0, 16), bias)}});
    }
    statistics.finish_merging(run);
    EXPECT_FALSE(statistics.get(1).of("cross").defined());
    EXPECT_TRUE(at::equal(statistics.get(1).of("output_cross"), expected.to(at::kFloat)));
  });
  EXPECT_EQ(errors, std::vector<std::string>(3));
}

/// Every statistic that merges otherwise, of inputs that lie on several ranks, one of which has none.
TEST(StatisticsStore, FindsRangesOverRanks) {
  const std::vector<compression::StatisticPtr> all = {std::make_shared<compression::MinimumMaximum>(),
                                                      std::make_shared<compression::MeanAbsolute>()};
  const graph::Graph graph = graph_of(kWideFeatures);
  const at::Tensor x = at::cat({part_of_rank(0), part_of_rank(2)}).to(at::kFloat);
  const auto errors = dist::run_ranks(3, [&](dist::Group& group) {
    const test::SmallModel model;
    const std::vector<execution::Batch> batches;
    PhaseTimes times;
    const execution::RunContext run{graph, model.weights, {at::kCPU, at::kBFloat16}, batches, {}, times, group, {}, 77};
    StatisticsStore statistics;
    std::vector<Contribution> none, first, last;
    for (const compression::StatisticPtr& statistic : all) {
      const at::Tensor own = part_of_rank(group.rank());
      none.push_back({statistic});
      first.push_back({statistic, {{own.slice(0, 0, 16)}}});
      last.push_back({statistic, {{own.slice(0, 16)}}});
    }
    if (group.rank() != 1) statistics.add(run, 1, first);
    statistics.add_last_and_merge(run, 1, group.rank() == 1 ? none : last);
    statistics.finish_merging(run);
    const compression::Statistics& found = statistics.get(1);
    EXPECT_TRUE(at::equal(found.of("minimum_maximum"), at::stack({-at::amin(x, 0), at::amax(x, 0)})));
    EXPECT_TRUE(at::equal(found.of("mean_absolute"), x.abs().sum(0, true)));
  });
  EXPECT_EQ(errors, std::vector<std::string>(3));
}

// ---- compression divided by rows

/// Rounds row by row, so that any division gives the same codes.
class RowwiseModifier : public OneSchemeModifier {
 public:
  explicit RowwiseModifier(const std::string& preset) : OneSchemeModifier(quant::preset_scheme(preset)) {
    if (scheme.weights->group_size) scheme.weights->group_size = 8;
  }
  std::int64_t row_step(const compression::LinearShape& linear) const override {
    return quant::rows_per_scale(*linear.scheme->weights);
  }
  compression::CompressionCost cost(const std::vector<compression::LinearShape>& linears) const override {
    return test::update_cost(linears);
  }
  std::vector<compression::CompressedModule> compress(const std::vector<compression::LinearWeight>& linears,
                                                      const compression::Statistics* statistics,
                                                      PhaseTimes&) const override {
    std::vector<compression::CompressedModule> results;
    for (const compression::LinearWeight& linear : linears) {
      const quant::QuantizationArgs& args = *scheme.weights;
      const auto shape = quant::scale_shape(args, linear.weight.size(0), linear.weight.size(1));
      compression::CompressedModule result;
      const at::Tensor level = (linear.weight * 20).round();
      if (args.type == quant::NumberType::kFloat)
        result.weight.codes = linear.weight.to(at::kFloat8_e4m3fn);
      else
        result.weight.codes = level.clamp(args.minimum_code(), args.maximum_code()).to(at::kChar);
      // Scales and zero points that tell which row they belong to.
      const std::int64_t step = std::max<std::int64_t>(1, quant::rows_per_scale(args));
      const at::Tensor first = linear.weight.select(1, 0).slice(0, 0, step * shape[0], step).abs().unsqueeze(1);
      if (shape.size() == 1)
        result.weight.scale = first.select(1, 0).slice(0, 0, 1).contiguous() + 1;
      else
        result.weight.scale = first.expand(shape).contiguous() + 1;
      if (!args.symmetric) result.weight.zero_point = (first * 10).round().clamp(0, 7).expand(shape).to(at::kChar);
      result.report = {.module = linear.module,
                       .scheme = "test",
                       .fallback = linear.weight.size(0) > 16 ? "" : "few rows",
                       .output_error = first.sum().item<double>() / static_cast<double>(linear.weight.size(0)),
                       .tokens = statistics->tokens};
      results.push_back(std::move(result));
    }
    return results;
  }
};

bool same(const at::Tensor& a, const at::Tensor& b) {
  if (a.defined() != b.defined()) return false;
  return !a.defined() || at::equal(a.view(at::kByte), b.view(at::kByte));
}

void compare_division(const std::string& preset, int ranks, bool with_owner) {
  const RowwiseModifier modifier(preset);
  at::manual_seed(3);
  std::vector<compression::LinearWeight> linears;
  std::vector<compression::LinearShape> shapes;
  for (const std::int64_t rows : {256, 128, 40}) {
    linears.push_back({fmt::format("linear{}", rows), at::randn({rows, 24}), &modifier.scheme, at::kFloat});
    shapes.push_back({rows, 24, at::kFloat, &modifier.scheme});
  }
  if (modifier.scheme.weights->strategy == quant::Strategy::kBlock) linears.pop_back(), shapes.pop_back();
  const compression::Statistics statistics{{{"gram", at::zeros({24, 24})}}, 5};
  PhaseTimes alone_times;
  const auto expected = modifier.compress(linears, &statistics, alone_times);
  double mean = 0, rows = 0;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    mean += *expected[i].report.output_error * static_cast<double>(shapes[i].rows);
    rows += static_cast<double>(shapes[i].rows);
  }
  mean /= rows;
  const graph::Graph graph = graph_of(24);
  const auto errors = dist::run_ranks(ranks, [&](dist::Group& group) {
    const test::SmallModel model;
    const std::vector<execution::Batch> batches;
    PhaseTimes times;
    const execution::RunContext run{graph, model.weights, {at::kCPU, at::kFloat}, batches, {}, times, group, {}, 5};
    const dist::DivisionRates rates{.network_bytes = with_owner ? 1 : 1e18,
                                    .operation_seconds = 0};  // hopeless, or perfect
    const schedule::GroupDivision division =
        schedule::divide_groups({{&modifier, shapes, test::triangle_bytes(24)}}, ranks, /*first_owner=*/1, rates)
            .front();
    EXPECT_EQ(division.owner, with_owner ? 1 : -1);
    ResultExchange exchange(run, {{shapes, &division}});
    const compression::CompressionTask own = own_rows(run, {linears, &statistics}, division);
    if (!own.linears.empty()) exchange.put(0, modifier.compress(own.linears, own.statistics, times));
    exchange.trade();
    const auto results = exchange.take(0, linears);
    ASSERT_EQ(results.size(), expected.size());
    for (std::size_t i = 0; i < results.size(); ++i) {
      EXPECT_TRUE(same(results[i].weight.codes, expected[i].weight.codes)) << preset << i;
      EXPECT_TRUE(same(results[i].weight.scale, expected[i].weight.scale)) << preset << i;
      EXPECT_TRUE(same(results[i].weight.zero_point, expected[i].weight.zero_point)) << preset << i;
      EXPECT_EQ(results[i].report.module, linears[i].module);
      EXPECT_EQ(results[i].report.tokens, 5);
      // Linears of one scheme are one stack, with one mean.
      if (division.owner < 0 && modifier.scheme.weights->strategy == quant::Strategy::kGroup) {
        EXPECT_NEAR(*results[i].report.output_error, mean, 1e-5);
      }
    }
  });
  EXPECT_EQ(errors, std::vector<std::string>(static_cast<std::size_t>(ranks))) << preset;
}

TEST(DividedCompression, GivesEveryRankWhatOneProcessMakes) {
  for (const char* preset : {"W4A16", "W4A16_ASYM", "W8A16", "W8A8", "FP8_DYNAMIC", "FP8_BLOCK"})
    for (const int ranks : {2, 3}) compare_division(preset, ranks, /*with_owner=*/false);
  compare_division("W4A16", 8, false);
  compare_division("W4A16_ASYM", 2, /*with_owner=*/true);
  compare_division("FP8", 3, false);  // one scale for all rows: linears are not cut
}

TEST(DivideGroups, SplitsOnlyWhatIsWorthIt) {
  const RowwiseModifier modifier("W4A16");
  const auto owner_of = [&](std::int64_t rows, std::int64_t columns, const dist::DivisionRates& rates, int ranks) {
    const schedule::DividedGroup group{
        &modifier, {{rows, columns, at::kBFloat16, &modifier.scheme}}, test::triangle_bytes(columns)};
    return schedule::divide_groups({group}, ranks, /*first_owner=*/2, rates).front().owner;
  };
  EXPECT_EQ(owner_of(4096, 4096, {}, 4), -1);
  EXPECT_EQ(owner_of(32, 4096, {}, 4), 2);
  EXPECT_EQ(owner_of(4096, 4096, {.network_bytes = 1e6}, 4), 2);
  EXPECT_EQ(owner_of(32, 4096, {}, 1), -1);
}

}  // namespace
}  // namespace layerpress::pipeline
