#include "layerpress/modifier/sensitivity.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "layerpress/compression/statistics/gram_statistic.h"
#include "tests/modifier/quantizers.h"

namespace layerpress::modifier {
namespace {

constexpr std::int64_t kFeatures = 128;

/// Correlated inputs, two linears that read them, and a quantizer for each scheme.
struct SensitivityCase {
  explicit SensitivityCase(const std::vector<std::string>& schemes) {
    at::manual_seed(19);
    const at::Tensor mixing = at::eye(kFeatures) + 0.3 * at::randn({kFeatures, kFeatures});
    x = at::randn({500, kFeatures}).mm(mixing).mul_(at::linspace(0.1, 4, kFeatures));
    statistics.tokens = x.size(0);
    at::Tensor gram = at::zeros({kFeatures, kFeatures});
    kernels::accumulate_gram(gram, x);
    statistics.figures.emplace(compression::GramStatistic::kName, gram);
    for (const std::string& scheme : schemes)
      alone.push_back(test::make_quantizer("QuantizationModifier", {{"scheme", scheme}}, "test"));
    sensitivity = test::make_sensitivity(schemes);
    for (const std::int64_t rows : {96, 32})
      linears.push_back({"m", at::randn({rows, kFeatures}).mul_(0.05).to(at::kBFloat16), &quant::unchanged_scheme(),
                         at::kBFloat16, 128});
  }

  /// tr(D H Dᵀ) = ‖X Dᵀ‖² in fp64.
  double textbook_loss(const at::Tensor& difference) const {
    return x.to(at::kDouble).mm(difference.to(at::kDouble).t()).square().sum().item<double>();
  }

  /// The values that a run of one scheme alone would compute with.
  at::Tensor rounded(std::size_t scheme, compression::LinearWeight linear) const {
    linear.scheme = alone[scheme]->scheme_groups().front().scheme;
    PhaseTimes times;
    const auto results = alone[scheme]->compress({linear}, nullptr, times);
    return quant::dequantize(*linear.scheme, results.front().weight, linear.weight.scalar_type());
  }

  at::Tensor x;
  compression::Statistics statistics;
  std::vector<std::unique_ptr<compression::Quantizer>> alone;
  std::unique_ptr<Sensitivity> sensitivity;
  std::vector<compression::LinearWeight> linears;
};

TEST(Sensitivity, FiguresAreTheTextbooks) {
  const std::vector<std::string> schemes = {"NVFP4", "FP8_DYNAMIC", "W4A16", "MXFP4", "W8A8", "FP8"};
  SensitivityCase measured(schemes);
  // What linears that engines fuse share: less than the first weight's own, more than the second one's.
  measured.linears[1].shared = *measured.sensitivity->value_to_share(measured.linears[0], nullptr);
  PhaseTimes times;
  const auto modules = measured.sensitivity->compress(measured.linears, &measured.statistics, times);
  ASSERT_EQ(modules.size(), 2u);
  for (std::size_t i = 0; i < modules.size(); ++i) {
    const compression::LinearWeight& linear = measured.linears[i];
    EXPECT_FALSE(modules[i].weight.codes.defined());
    EXPECT_EQ(modules[i].report.tokens, 500);
    const double power = measured.textbook_loss(linear.weight);
    EXPECT_NEAR(modules[i].report.figures.front() / power, 1, 1e-5);
    const std::vector<std::optional<double>> errors = relative_errors(modules[i].report);
    ASSERT_EQ(errors.size(), schemes.size());
    for (std::size_t s = 0; s < schemes.size(); ++s) {
      const double expected =
          measured.textbook_loss(linear.weight.to(at::kDouble) - measured.rounded(s, linear).to(at::kDouble)) / power;
      EXPECT_GT(expected, 1e-6) << schemes[s];
      EXPECT_NEAR(errors[s].value() / expected, 1, 1e-4) << schemes[s];
    }
  }
}

TEST(Sensitivity, SharedScaleChangesOnlyTheSchemeThatHasOne) {
  SensitivityCase measured({"NVFP4", "W4A16"});
  PhaseTimes times;
  const auto before = measured.sensitivity->compress(measured.linears, &measured.statistics, times);
  measured.linears[0].shared = 7.0;
  const auto after = measured.sensitivity->compress(measured.linears, &measured.statistics, times);
  EXPECT_NE(before[0].report.figures[1], after[0].report.figures[1]);
  EXPECT_EQ(before[0].report.figures[2], after[0].report.figures[2]);
  EXPECT_EQ(before[1].report.figures, after[1].report.figures);
}

/// GPTQ's error of a column is what the p columns behind it do not say of its input: with H = R Rᵀ and white errors, the sum of R's squared diagonal,
/// which is smaller on the n tokens of H than on others, by (1 - p / n)².
TEST(Sensitivity, WhatGptqLeavesIsTheTextbooks) {
  const SensitivityCase measured({"W4A16"});
  const auto asking = test::make_sensitivity({"W4A16"}, /*asks_what_gptq_leaves=*/true);
  PhaseTimes times;
  const auto results = asking->compress(measured.linears, &measured.statistics, times);
  at::Tensor h = measured.x.to(at::kDouble).t().mm(measured.x.to(at::kDouble));
  h.diagonal().add_(0.01 * h.diagonal().mean());
  const at::Tensor order = h.diagonal().argsort(/*dim=*/-1, /*descending=*/true).flip(0);
  const at::Tensor reversed = at::linalg_cholesky(h.index_select(0, order).index_select(1, order));
  const at::Tensor inputs = measured.x.to(at::kDouble).square().sum(0).index_select(0, order);
  const at::Tensor fitted = 1 - at::arange(kFeatures, at::kDouble) / static_cast<double>(measured.x.size(0));
  const at::Tensor left = at::minimum(reversed.diagonal().square() / fitted.square(), inputs);
  const double wanted = (left.sum() / inputs.sum()).item<double>();
  EXPECT_LT(wanted, 0.9);
  for (const auto& module : results) EXPECT_NEAR(*relative_errors(module.report).back(), wanted, 1e-3 * wanted);
}

TEST(Sensitivity, FiguresOfPartsAddUp) {
  SensitivityCase measured({"W4A16", "FP8_DYNAMIC"});
  const compression::LinearWeight& whole = measured.linears[0];
  EXPECT_EQ(measured.sensitivity->row_step({96, kFeatures}), 1);
  PhaseTimes times;
  compression::ModuleReport joined;
  for (const std::int64_t first : {0, 48}) {
    compression::LinearWeight part = whole;
    part.weight = whole.weight.narrow(0, first, 48), part.first_row = first, part.whole = whole.weight;
    const auto results = measured.sensitivity->compress({part}, &measured.statistics, times);
    const auto read = compression::ModuleReport::from_json(results.front().report.to_json());  // as ranks send it
    if (first == 0)
      joined = read;
    else
      joined.add_figures(read.figures);
  }
  const auto at_once = measured.sensitivity->compress({whole}, &measured.statistics, times);
  for (std::size_t i = 0; i < joined.figures.size(); ++i)
    EXPECT_NEAR(joined.figures[i] / at_once.front().report.figures[i], 1, 1e-5);
  joined.figures.pop_back();
  EXPECT_THROW(joined.add_figures(at_once.front().report.figures), InternalError);
}

TEST(Sensitivity, SchemesOfWholeTensorsKeepRowsTogether) {
  EXPECT_EQ(SensitivityCase({"FP8_BLOCK", "W4A16"}).sensitivity->row_step({256, kFeatures}), 128);
  EXPECT_EQ(SensitivityCase({"W4A16", "FP8"}).sensitivity->row_step({256, kFeatures}), 0);
}

TEST(Sensitivity, NothingIsSaidWithoutInputs) {
  SensitivityCase measured({"W4A16"});
  measured.statistics.tokens = 0;
  measured.statistics.figures.begin()->second.zero_();
  PhaseTimes times;
  const auto modules = measured.sensitivity->compress(measured.linears, &measured.statistics, times);
  EXPECT_FALSE(relative_errors(modules[0].report).front().has_value());
  EXPECT_FALSE(modules[0].report.fallback.empty());
}

}  // namespace
}  // namespace layerpress::modifier
