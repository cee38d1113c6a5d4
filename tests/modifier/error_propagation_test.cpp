#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "layerpress/base/error.h"
#include "layerpress/compression/statistics/output_cross_statistic.h"
#include "layerpress/kernels/layers/output_cross.h"
#include "layerpress/kernels/products/gram.h"
#include "layerpress/modifier/all_modifiers.h"
#include "tests/modifier/quantizers.h"

namespace layerpress::modifier {
namespace {

constexpr std::int64_t kColumns = 128;

std::unique_ptr<compression::Quantizer> gptq(const Json& propagation, const std::string& where = "test.yaml",
                                             const Json& observer = nullptr) {
  const Json weights = {{"num_bits", 3}, {"strategy", "group"}, {"group_size", 32}};
  return test::make_quantizer("GPTQModifier",
                              {{"config_groups", {{"group_0", {{"targets", {"Linear"}}, {"weights", weights}}}}},
                               {"error_propagation", propagation},
                               {"weight_observer", observer}},
                              where);
}

/// Inputs of the compressed and the original model, and their sums.
struct Inputs {
  at::Tensor compressed, original;
  compression::Statistics statistics;
};

Inputs random_inputs(std::int64_t tokens) {
  const at::Tensor mixing = at::randn({kColumns, kColumns}) * 0.05 + at::eye(kColumns);
  const at::Tensor original = at::randn({tokens, kColumns}).mm(mixing);
  // An error as quantization makes it: a linear function of the inputs, and noise.
  const at::Tensor error = original.mm(at::randn({kColumns, kColumns}) * 0.03) + 0.05 * at::randn({tokens, kColumns});
  Inputs inputs{original + error, original, {}};
  inputs.statistics.tokens = tokens;
  at::Tensor gram = at::zeros({kColumns, kColumns}), cross = at::zeros({kColumns, kColumns});
  kernels::accumulate_gram(gram, inputs.compressed);
  kernels::accumulate_cross_gram(cross, original, inputs.compressed);
  inputs.statistics.figures = {{"gram", gram}, {"cross", cross}};
  return inputs;
}

std::vector<compression::CompressedModule> compress(const compression::Quantizer& modifier,
                                                    const std::vector<at::Tensor>& weights,
                                                    const compression::Statistics& statistics,
                                                    std::int64_t group_rows = 0) {
  std::vector<compression::LinearWeight> linears;
  for (const at::Tensor& weight : weights)
    linears.push_back({"m", weight, modifier.scheme_for({"m", {"Linear"}}), at::kFloat, group_rows});
  PhaseTimes times;
  return modifier.compress(linears, &statistics, times);
}

at::Tensor dequantized(const compression::CompressedModule& module) {
  const at::Tensor codes = module.weight.codes.to(at::kFloat);
  return codes * module.weight.scale.to(at::kFloat).repeat_interleave(codes.size(1) / module.weight.scale.size(1), 1);
}

void expect_equal_codes(const compression::CompressedModule& a, const compression::CompressedModule& b) {
  EXPECT_TRUE(at::equal(a.weight.codes, b.weight.codes));
  EXPECT_TRUE(at::equal(a.weight.scale, b.weight.scale));
}

TEST(ErrorPropagation, LowersTheErrorToTheOriginalOutputs) {
  at::manual_seed(71);
  const Inputs inputs = random_inputs(4000);
  const at::Tensor weight = at::randn({64, kColumns});
  const at::Tensor wanted = inputs.original.mm(weight.t());
  const auto error = [&](const Json& propagation) {
    const at::Tensor quantized = dequantized(compress(*gptq(propagation), {weight}, inputs.statistics).at(0));
    return ((inputs.compressed.mm(quantized.t()) - wanted).norm() / wanted.norm()).item<double>();
  };
  const double plain = error(nullptr), half = error(true), whole = error({{"strength", 1.0}, {"damping", 0.01}});
  EXPECT_LT(half, 0.9 * plain);
  EXPECT_LT(whole, half);
}

TEST(ErrorPropagation, WithoutDifferenceIsPlainGptq) {
  at::manual_seed(72);
  const Inputs inputs = random_inputs(1000);
  const std::vector<at::Tensor> weights = {at::randn({48, kColumns}).to(at::kBFloat16),
                                           at::randn({300, kColumns}).to(at::kBFloat16)};
  const auto plain = compress(*gptq(nullptr), weights, inputs.statistics);
  compression::Statistics none = inputs.statistics, zero = inputs.statistics;
  none.figures.erase("cross");
  zero.figures["cross"] = at::zeros({kColumns, kColumns});
  for (const compression::Statistics& statistics : {none, zero}) {
    const auto same = compress(*gptq(true), weights, statistics);
    for (std::size_t i = 0; i < weights.size(); ++i) {
      expect_equal_codes(same[i], plain[i]);
      EXPECT_EQ(same[i].report.output_error, plain[i].report.output_error);
      EXPECT_EQ(same[i].report.fallback, "");
    }
  }
  const auto without = compress(*gptq({{"strength", 0}}), weights, inputs.statistics);
  expect_equal_codes(without[1], plain[1]);
  const auto other = compress(*gptq(true), weights, inputs.statistics);
  EXPECT_FALSE(at::equal(other[1].weight.codes, plain[1].weight.codes));
}

TEST(ErrorPropagation, FallsBackToPlainGptqAndSaysSo) {
  at::manual_seed(73);
  Inputs inputs = random_inputs(1000);
  const at::Tensor weight = at::randn({48, kColumns});
  const auto plain = compress(*gptq(nullptr), {weight}, inputs.statistics).at(0);
  compression::Statistics broken = inputs.statistics;
  broken.figures["cross"] = at::full({kColumns, kColumns}, NAN);
  const auto fallen = compress(*gptq(true), {weight}, broken).at(0);
  expect_equal_codes(fallen, plain);
  EXPECT_EQ(fallen.report.fallback, "no error propagation (factorization failed)");

  const Inputs few = random_inputs(20);  // fewer tokens than columns: GPTQ's own dampening still helps it
  const auto undamped = compress(*gptq({{"damping", 0}}), {weight}, few.statistics).at(0);
  expect_equal_codes(undamped, compress(*gptq(nullptr), {weight}, few.statistics).at(0));
  EXPECT_EQ(undamped.report.fallback, "no error propagation (factorization failed)");
  EXPECT_EQ(compress(*gptq(true), {weight}, few.statistics).at(0).report.fallback, "");

  broken.figures["gram"] = at::eye(kColumns);
  broken.figures["gram"][1][2] = 1e6;
  EXPECT_EQ(compress(*gptq(true), {weight}, broken).at(0).report.fallback,
            "round-to-nearest (factorization failed), no error propagation (factorization failed)");
}

/// ErrorPropagationModifier's edit of one weight.
compression::CompressedModule moved_module(const at::Tensor& weight, const compression::Statistics& statistics,
                                           const OrderedJson& arguments) {
  const auto edited = test::make_edited("ErrorPropagationModifier", arguments, kColumns, nullptr);
  PhaseTimes times;
  return edited->compress({{"m", weight, &quant::dense_scheme(), at::kFloat}}, &statistics, times).at(0);
}

at::Tensor moved(const at::Tensor& weight, const compression::Statistics& statistics, const OrderedJson& arguments) {
  return moved_module(weight, statistics, arguments).weight.codes;
}

TEST(DensePropagation, IsTheLeastSquaresSolution) {
  at::manual_seed(75);
  const Inputs inputs = random_inputs(4000);
  const at::Tensor weight = at::randn({2500, kColumns});
  const at::Tensor x = inputs.compressed.to(at::kDouble), original = inputs.original.to(at::kDouble);
  at::Tensor gram = x.t().mm(x);
  gram.diagonal().add_(0.25 * gram.diagonal().mean());
  const at::Tensor w = weight.to(at::kDouble);
  const at::Tensor expected = w + 0.75 * at::linalg_solve(gram, w.mm((original - x).t().mm(x)), /*left=*/false);
  const at::Tensor found =
      moved(weight, inputs.statistics, {{"targets", "Linear"}, {"strength", 0.75}, {"damping", 0.25}});
  EXPECT_LT((found.to(at::kDouble) - expected).norm().item<double>(), 1e-4 * (expected - w).norm().item<double>());
  const at::Tensor wanted = inputs.original.mm(weight.t());
  const auto error = [&](const at::Tensor& own) {
    return (inputs.compressed.mm(own.t()) - wanted).norm().item<double>();
  };
  EXPECT_LT(error(moved(weight, inputs.statistics, {{"targets", "Linear"}})), 0.8 * error(weight));
}

TEST(DensePropagation, KeepsTheDtypeAndWhatNothingWasCompressedBefore) {
  at::manual_seed(76);
  const Inputs inputs = random_inputs(1000);
  const at::Tensor weight = at::randn({40, kColumns}).to(at::kBFloat16);
  EXPECT_EQ(moved(weight, inputs.statistics, {{"targets", "Linear"}}).scalar_type(), at::kBFloat16);
  EXPECT_FALSE(at::equal(moved(weight, inputs.statistics, {{"targets", "Linear"}}), weight));
  compression::Statistics none = inputs.statistics;
  none.figures.erase("cross");
  const compression::CompressedModule left = moved_module(weight, none, {{"targets", "Linear"}});
  EXPECT_TRUE(at::equal(left.weight.codes, weight));
  EXPECT_EQ(left.report.fallback, "not moved (nothing was compressed before it)");
}

TEST(DensePropagation, RefusesWhatItCannotMean) {
  for (const OrderedJson& wrong :
       {OrderedJson{{"strength", 3}}, OrderedJson{{"damping", -1}}, OrderedJson{{"residual", "a"}},
        OrderedJson{{"scheme", "W4A16"}}, OrderedJson{{"targets", 5}}})
    EXPECT_THROW((void)make_modifier("ErrorPropagationModifier", wrong, "test"), RecipeError) << wrong.dump();
}

/// Ranks divide the rows of a group; they say of how many rows it is.
TEST(ErrorPropagation, DoesNotDependOnTheDivisionOfRows) {
  at::manual_seed(74);
  const Inputs inputs = random_inputs(1000);
  const auto modifier = gptq(true);
  for (const std::int64_t rows : {100, 400}) {
    const at::Tensor weight = at::randn({rows, kColumns}).to(at::kBFloat16), other = at::randn({20, kColumns});
    const auto whole = compress(*modifier, {weight, other}, inputs.statistics);
    std::vector<at::Tensor> codes;
    const std::vector<std::int64_t> cuts = {0, 33, 70, rows};
    for (std::size_t i = 1; i < cuts.size(); ++i)
      codes.push_back(compress(*modifier, {weight.slice(0, cuts[i - 1], cuts[i])}, inputs.statistics, rows + 20)
                          .at(0)
                          .weight.codes);
    EXPECT_TRUE(at::equal(at::cat(codes), whole[0].weight.codes)) << rows;
    const auto rest = compress(*modifier, {other}, inputs.statistics, rows + 20);
    EXPECT_TRUE(at::equal(rest[0].weight.codes, whole[1].weight.codes)) << rows;
  }
}

/// Moved weights are made batch by batch; that changes nothing.
TEST(ErrorPropagation, DoesNotDependOnTheBatchesOfWeights) {
  at::manual_seed(75);
  const Inputs inputs = random_inputs(500);
  const auto modifier = gptq(true, "test.yaml", "minmax");  // the fastest
  // Rows of one batch: 2^24 elements.
  const at::Tensor large = at::randn({(1 << 24) / kColumns - 100, kColumns}), small = at::randn({150, kColumns});
  const auto both = compress(*modifier, {large, small}, inputs.statistics);
  expect_equal_codes(both[0], compress(*modifier, {large}, inputs.statistics, large.size(0) + 150).at(0));
  expect_equal_codes(both[1], compress(*modifier, {small}, inputs.statistics, large.size(0) + 150).at(0));
  ASSERT_TRUE(both[0].report.output_error.has_value());
  EXPECT_EQ(both[0].report.output_error, both[1].report.output_error);  // the stack's, not the batch's
}

std::vector<std::string> names_of(const std::vector<compression::StatisticPtr>& statistics) {
  std::vector<std::string> names;
  for (const compression::StatisticPtr& statistic : statistics) names.emplace_back(statistic->name());
  return names;
}

using Names = std::vector<std::string>;

TEST(ErrorPropagation, IsWantedWhenItIsAskedFor) {
  const compression::ValueFacts same{3}, other{3, /*differs=*/true};
  for (const Json& off : {Json(nullptr), Json(false)}) {
    EXPECT_FALSE(gptq(off)->wants_original()) << off;
    EXPECT_EQ(names_of(gptq(off)->statistics_wanted(other)), Names{"gram"}) << off;
  }
  for (const Json& on : {Json(true), Json::object(), Json{{"strength", 0.3}}, Json{{"damping", 1}}}) {
    EXPECT_TRUE(gptq(on)->wants_original()) << on;
    EXPECT_EQ(names_of(gptq(on)->statistics_wanted(other)), (Names{"gram", "cross"})) << on;
    EXPECT_EQ(names_of(gptq(on)->statistics_wanted(same)), Names{"gram"}) << on;
  }
}

TEST(ErrorPropagation, WantsOutputsOnlyForTheResidualStream) {
  const graph::ResidualWrite write{7, "down.bias", 48, /*stream=*/5, /*output=*/9, /*factor=*/0.5};
  const compression::ValueFacts facts{3, /*differs=*/true, write};
  EXPECT_EQ(names_of(gptq(nullptr)->statistics_wanted(facts)), Names{"gram"});
  EXPECT_EQ(names_of(gptq({{"residual", 0}})->statistics_wanted(facts)), (Names{"gram", "cross"}));
  const auto wanted = gptq({{"strength", 0.7}, {"residual", 0.2}})->statistics_wanted(facts);
  ASSERT_EQ(names_of(wanted), (Names{"gram", "output_cross"}));
  const auto& outputs = dynamic_cast<const compression::OutputCrossStatistic&>(*wanted[1]);
  EXPECT_EQ(outputs.shares().output, 0.7);
  EXPECT_EQ(outputs.shares().stream, 0.4);  // what the linear writes is halved on its way
  EXPECT_EQ(outputs.rows(kColumns), 48);
  EXPECT_EQ(outputs.parameter(), "down.bias");
  EXPECT_EQ(outputs.sources(3).back(), (compression::StatisticSource{9, true}));
}

TEST(ErrorPropagation, MakesGoodTheResidualStream) {
  at::manual_seed(76);
  const Inputs inputs = random_inputs(3000);
  const at::Tensor weight = at::randn({64, kColumns}), stream = at::randn({3000, 64});
  // What the stream lacks is partly a function of the inputs.
  const at::Tensor original = stream + inputs.compressed.mm(at::randn({kColumns, 64})) * 0.4;
  compression::Statistics statistics = inputs.statistics;
  statistics.figures.erase("cross");
  const auto error = [&](double residual) {
    at::Tensor& sums = statistics.figures["output_cross"] = at::zeros({64, kColumns});
    const at::Tensor output = inputs.original.mm(weight.t()), wanted = original + output;
    kernels::accumulate_output_cross(sums, {inputs.compressed, stream, original, output}, {}, {1.0, residual});
    const Json options = {{"strength", 1}, {"damping", 0.01}};
    const at::Tensor quantized = dequantized(compress(*gptq(options), {weight}, statistics).at(0));
    return ((stream + inputs.compressed.mm(quantized.t()) - wanted).norm() / wanted.norm()).item<double>();
  };
  EXPECT_LT(error(1.0), 0.8 * error(0.0));
  EXPECT_LT(error(1.0), error(0.5));
}

TEST(ErrorPropagation, ThatFailsForOutputsIsPlainGptq) {
  at::manual_seed(77);
  const Inputs inputs = random_inputs(1000);
  const at::Tensor weight = at::randn({300, kColumns}).to(at::kBFloat16);
  compression::Statistics statistics = inputs.statistics;
  statistics.figures.erase("cross");
  statistics.figures["output_cross"] = at::full({300, kColumns}, NAN);
  const auto plain = compress(*gptq(nullptr), {weight}, inputs.statistics).at(0);
  const auto fallen = compress(*gptq(true), {weight}, statistics).at(0);
  expect_equal_codes(fallen, plain);
  EXPECT_EQ(fallen.report.fallback, "no error propagation (factorization failed)");
}

/// A rank gets some rows of the weight, and the statistics of all.
TEST(ErrorPropagation, FindsItsRowsOfTheOutputs) {
  at::manual_seed(78);
  const Inputs inputs = random_inputs(1000);
  const at::Tensor weight = at::randn({100, kColumns}), stream = at::randn({1000, 100});
  compression::Statistics statistics = inputs.statistics;
  statistics.figures.erase("cross");
  at::Tensor& sums = statistics.figures["output_cross"] = at::zeros({100, kColumns});
  const at::Tensor original = stream + at::randn({1000, 100});
  kernels::accumulate_output_cross(sums, {inputs.compressed, stream, original, inputs.original.mm(weight.t())}, {},
                                   {0.6, 0.3});
  const auto modifier = gptq(true);
  const auto whole = compress(*modifier, {weight}, statistics).at(0);
  PhaseTimes times;
  const auto part =
      modifier->compress({{"m", weight.slice(0, 33, 70), modifier->scheme_for({"m", {"Linear"}}), at::kFloat, 100, 33}},
                         &statistics, times);
  EXPECT_TRUE(at::equal(part.at(0).weight.codes, whole.weight.codes.slice(0, 33, 70)));
}

TEST(ErrorPropagation, RefusesByKeyAndPlace) {
  const auto expect_refused = [](const Json& propagation, const std::vector<std::string>& parts) {
    try {
      gptq(propagation, "r.yaml: s.m.GPTQModifier");
      ADD_FAILURE() << "accepted " << propagation;
    } catch (const RecipeError& error) {
      const std::string message = error.what();
      EXPECT_NE(message.find("r.yaml: s.m.GPTQModifier.error_propagation"), std::string::npos) << message;
      for (const std::string& part : parts) EXPECT_NE(message.find(part), std::string::npos) << message;
    }
  };
  expect_refused(0.5, {"true, false or a mapping"});
  expect_refused("yes please", {"mapping of strength, damping and residual"});
  expect_refused({{"strenght", 0.5}}, {"'strenght'", "strength"});
  expect_refused({{"residual", -1}}, {".residual is -1", "between 0 and 2"});
  expect_refused({{"residual", true}}, {".residual is true", "number"});
  expect_refused({{"strength", -0.1}}, {".strength is -0.1", "between 0 and 2"});
  expect_refused({{"strength", 2.5}}, {".strength is 2.5", "between 0 and 2"});
  expect_refused({{"strength", "0.5"}}, {".strength is \"0.5\"", "number"});
  expect_refused({{"strength", true}}, {".strength is true", "number"});
  expect_refused({{"damping", nullptr}}, {".damping is null", "number"});
  expect_refused({{"damping", -1}}, {".damping is -1", "1e+06"});
  try {
    test::make_quantizer("QuantizationModifier", {{"scheme", "W4A16"}, {"error_propagation", true}}, "r.yaml");
    ADD_FAILURE() << "accepted by QuantizationModifier";
  } catch (const RecipeError& error) {
    EXPECT_NE(std::string(error.what()).find("unknown argument 'error_propagation'"), std::string::npos);
  }
}

}  // namespace
}  // namespace layerpress::modifier
