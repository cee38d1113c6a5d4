// What each statistic gathers, and what becomes of it when channels of its value are divided.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>
#include <map>

#include "layerpress/compression/statistics/cross_statistic.h"
#include "layerpress/compression/statistics/gram_statistic.h"
#include "layerpress/compression/statistics/mean_absolute.h"
#include "layerpress/compression/statistics/minimum_maximum.h"
#include "layerpress/compression/statistics/moving_range.h"
#include "layerpress/compression/statistics/output_cross_statistic.h"
#include "layerpress/compression/statistics/square_sum.h"

namespace layerpress::compression {
namespace {

constexpr std::int64_t kTokens = 700, kFeatures = 40, kRows = 24;
const graph::ResidualWrite kWrite{7, "bias", kRows, /*stream=*/2, /*output=*/3};

std::vector<StatisticPtr> all() {
  return {std::make_shared<GramStatistic>(),
          std::make_shared<CrossStatistic>(),
          std::make_shared<OutputCrossStatistic>(kWrite, 0.5, 0.25),
          std::make_shared<MinimumMaximum>(),
          std::make_shared<MeanAbsolute>(),
          std::make_shared<SquareSum>()};
}

/// Figures of some tokens, the upper triangle where only that is defined.
at::Tensor figures_of(const Statistic& statistic, const StatisticInput& input) {
  at::Tensor figures = at::full({statistic.rows(kFeatures), kFeatures}, statistic.identity(), at::kFloat);
  statistic.add(figures, input, statistic.all_rows(kFeatures));
  return figures;
}

at::Tensor defined_part(const Statistic& statistic, const at::Tensor& figures) {
  return statistic.travel() == Travel::kTriangle ? figures.triu() : figures;
}

struct Values {
  at::Tensor x = at::randn({kTokens, kFeatures}), original = x + 0.1 * at::randn({kTokens, kFeatures});
  at::Tensor stream = at::randn({kTokens, kRows}), stream_original = stream + 0.1 * at::randn({kTokens, kRows});
  at::Tensor output = at::randn({kTokens, kRows}), bias = at::randn({kRows});

  StatisticInput input_of(const Statistic& statistic, std::int64_t first, std::int64_t last) const {
    StatisticInput input{{}, statistic.parameter().empty() ? at::Tensor() : bias};
    for (const StatisticSource& source : statistic.sources(1)) {
      const std::map<StatisticSource, at::Tensor> values = {
          {{1}, x}, {{1, true}, original}, {{2}, stream}, {{2, true}, stream_original}, {{3, true}, output}};
      input.values.push_back(values.at(source).slice(0, first, last));
    }
    return input;
  }
};

double distance(const at::Tensor& a, const at::Tensor& b) { return ((a - b).norm() / b.norm()).item<double>(); }

TEST(Statistics, MergeOverPiecesAsTheySay) {
  at::manual_seed(3);
  const Values values;
  for (const StatisticPtr& statistic : all()) {
    const at::Tensor whole = figures_of(*statistic, values.input_of(*statistic, 0, kTokens));
    const at::Tensor first = figures_of(*statistic, values.input_of(*statistic, 0, 300));
    const at::Tensor second = figures_of(*statistic, values.input_of(*statistic, 300, kTokens));
    const at::Tensor merged = statistic->merge() == Merge::kSum ? first + second : at::maximum(first, second);
    EXPECT_LT(distance(defined_part(*statistic, merged), defined_part(*statistic, whole)), 1e-5) << statistic->name();
    const at::Tensor none = figures_of(*statistic, values.input_of(*statistic, 0, 0));
    EXPECT_TRUE(none.eq(statistic->identity()).all().item<bool>()) << statistic->name();
  }
}

/// An inner value that is divided, what reads it multiplied: its statistics need no second pass over the tokens.
TEST(Statistics, FollowTheDivisionOfChannels) {
  at::manual_seed(4);
  Values values;
  const at::Tensor scale = at::rand({kFeatures}) * 3 + 0.1;
  for (const StatisticPtr& statistic : all()) {
    at::Tensor divided = figures_of(*statistic, values.input_of(*statistic, 0, kTokens));
    statistic->divide_channels(divided, scale);
    Values smooth = values;
    smooth.x = values.x / scale;
    smooth.original = values.original / scale;
    const at::Tensor expected = figures_of(*statistic, smooth.input_of(*statistic, 0, kTokens));
    EXPECT_LT(distance(defined_part(*statistic, divided), defined_part(*statistic, expected)), 1e-5)
        << statistic->name();
  }
}

/// Five samples, the third one without tokens.
SampleRows samples_of(std::int64_t first, std::int64_t last) {
  const std::vector<std::int64_t> offsets = {0, 10, 300, 300, 450, kTokens};
  SampleRows samples{{}, {}, 5};
  for (std::int64_t i = first; i <= last; ++i) samples.offsets.push_back(offsets[i] - offsets[first]);
  for (std::int64_t i = first; i < last; ++i) samples.places.push_back(i);
  return samples;
}

at::Tensor moving_figures(const MovingRange& statistic, const at::Tensor& x, std::int64_t first, std::int64_t last) {
  const SampleRows samples = samples_of(first, last), before = samples_of(0, first);
  at::Tensor figures = at::zeros({3, kFeatures});
  statistic.add(figures, {{x.narrow(0, before.offsets.back(), samples.offsets.back())}, {}, samples}, {0, 3});
  return figures;
}

TEST(Statistics, MovingRangesGoByTheOrderOfTheSamplesWhereverTheyAreCut) {
  at::manual_seed(5);
  const at::Tensor x = at::randn({kTokens, kFeatures});
  const double c = 0.3;
  const MovingRange statistic({quant::InputObserver::kMovingRange, c, {}}, {});
  double least = 0, weights = 0;
  const std::vector<std::int64_t> offsets = samples_of(0, 5).offsets;
  for (std::int64_t i = 0; i < 5; ++i) {
    if (offsets[i] == offsets[i + 1]) continue;
    const double weight = (i == 0 ? 1 : c) * std::pow(1 - c, 4 - i);
    least += weight * x.slice(0, offsets[i], offsets[i + 1]).min().item<double>();
    weights += weight;
  }
  const at::Tensor whole = moving_figures(statistic, x, 0, 5);
  EXPECT_NEAR(whole[0][0].item<double>(), least, 1e-5);
  EXPECT_NEAR(whole[2][7].item<double>(), weights, 1e-6);
  for (std::int64_t cut = 1; cut < 5; ++cut) {
    const at::Tensor parts = moving_figures(statistic, x, 0, cut) + moving_figures(statistic, x, cut, 5);
    EXPECT_TRUE(at::allclose(parts, whole, 1e-5)) << cut;
  }
}

TEST(Statistics, SearchedRangesAreShrunkenOnes) {
  at::manual_seed(6);
  at::Tensor x = at::randn({kTokens, kFeatures});
  x[3][3] = 12;  // an outlier
  quant::QuantizationArgs inputs;
  inputs.num_bits = 4;
  const at::Tensor plain = moving_figures(MovingRange({quant::InputObserver::kMovingRange, 0.5, {}}, inputs), x, 0, 1);
  const at::Tensor found = moving_figures(MovingRange({quant::InputObserver::kMovingError, 0.5, {}}, inputs), x, 0, 1);
  const double share = (found[1][0] / plain[1][0]).item<double>();
  EXPECT_LT(share, 0.95);
  EXPECT_GT(share, 0.79);
  EXPECT_NEAR((found[0][0] / plain[0][0]).item<double>(), share, 1e-6);
}

TEST(Statistics, RangesOfRunsOfChannels) {
  at::manual_seed(7);
  const at::Tensor x = at::randn({kTokens, kFeatures});
  constexpr std::int64_t kRun = kFeatures / 2;
  const MovingRange statistic({quant::InputObserver::kMovingRange, 0.5, {}}, {}, kRun);
  const at::Tensor range = statistic.range(moving_figures(statistic, x, 0, 1));
  const at::Tensor sample = x.narrow(0, 0, samples_of(0, 1).offsets.back());
  for (std::int64_t c = 0; c < kFeatures; ++c) {
    const at::Tensor run = sample.narrow(1, c / kRun * kRun, kRun);
    EXPECT_NEAR(range[0][c].item<double>(), run.min().item<double>(), 1e-6) << c;
    EXPECT_NEAR(range[1][c].item<double>(), run.max().item<double>(), 1e-6) << c;
  }
  const at::Tensor nothing = statistic.range(at::zeros({3, kFeatures}));
  EXPECT_TRUE(nothing[0].gt(nothing[1]).all().item<bool>());
}

TEST(Statistics, CountElementsThatTravel) {
  const GramStatistic gram;
  EXPECT_EQ(element_count(gram, 5, gram.all_rows(5)), 15);
  EXPECT_EQ(element_count(gram, 5, {1, 3}), 4 + 3);
  EXPECT_EQ(element_count(CrossStatistic(), 5, {1, 3}), 10);
  EXPECT_EQ(element_count(MinimumMaximum(), 5, {0, 2}), 10);
}

TEST(Statistics, KnowWhichSourceIsLast) {
  const auto gram = std::make_shared<GramStatistic>();
  EXPECT_EQ(last_source({gram}, 1), (StatisticSource{1, false}));
  EXPECT_EQ(last_source({std::make_shared<CrossStatistic>(), gram}, 1), (StatisticSource{1, true}));
  EXPECT_EQ(last_source({gram, std::make_shared<OutputCrossStatistic>(kWrite, 1, 1)}, 1), (StatisticSource{3, true}));
}

}  // namespace
}  // namespace layerpress::compression
