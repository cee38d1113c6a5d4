#include "layerpress/modifier/pruning/pruning.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "layerpress/compression/statistics/gram_statistic.h"
#include "layerpress/compression/statistics/square_sum.h"
#include "layerpress/kernels/solver/sparsify.h"
#include "layerpress/modifier/all_modifiers.h"
#include "layerpress/quant/compressed_weight.h"
#include "tests/modifier/quantizers.h"

namespace layerpress::modifier {
namespace {

constexpr std::int64_t kInputs = 256;

std::vector<compression::ModelModule> small_model() {
  std::vector<compression::ModelModule> modules = {{{"model", {"Model"}}}};
  for (const char* layer : {"model.layers.0", "model.layers.1"}) {
    modules.push_back({{layer, {"LlamaDecoderLayer"}}});
    for (const char* linear : {".self_attn.q_proj", ".mlp.down_proj"})
      modules.push_back({{std::string(layer) + linear, {"Linear"}}, true, kInputs});
  }
  modules.push_back({{"lm_head", {"Linear"}}, true, kInputs});
  return modules;
}

std::map<std::string, compression::EditPtr> edits_of(const std::string& type, const OrderedJson& arguments) {
  const auto modifier = make_modifier(type, arguments, "test");
  return dynamic_cast<const compression::EditingModifier&>(*modifier).edits_of(small_model());
}

std::string pruning_error(const std::string& type, const OrderedJson& arguments) {
  try {
    edits_of(type, arguments);
  } catch (const RecipeError& error) {
    return error.what();
  }
  return "no error";
}

bool has_part(const std::string& message, const std::string& part) { return message.find(part) != std::string::npos; }

TEST(PruningModifier, RefusesByName) {
  for (const char* type : {"SparseGPTModifier", "WandaPruningModifier"}) {
    const auto error = [&](OrderedJson arguments) {
      if (!arguments.contains("sparsity")) arguments["sparsity"] = 0.5;
      return pruning_error(type, arguments);
    };
    EXPECT_TRUE(has_part(pruning_error(type, OrderedJson::object()), "sparsity is missing"));
    EXPECT_TRUE(has_part(error({{"sparsity", 1}}), "sparsity 1 is not a number from 0 to below 1"));
    EXPECT_TRUE(has_part(error({{"sparsity", nullptr}}), "sparsity null"));
    EXPECT_TRUE(has_part(error({{"sparsity", {0.5, "x"}}}), "\"x\""));
    EXPECT_TRUE(has_part(error({{"sparsity", {0.5, 0.4}}}), "2 numbers, but its targets match 5 modules"));
    EXPECT_TRUE(has_part(error({{"mask_structure", "4:2"}}), "mask_structure '4:2'"));
    EXPECT_TRUE(has_part(error({{"mask_structure", "2"}}), "mask_structure '2'"));
    EXPECT_TRUE(has_part(error({{"sparsity_profile", "owl"}, {"owl_m", 5}}), "owl_m and owl_lmbda belong together"));
    EXPECT_TRUE(has_part(error({{"owl_lmbda", 0.1}}), "owl_m and owl_lmbda belong together"));
    EXPECT_TRUE(has_part(error({{"sparsity_profile", "awl"}, {"owl_m", 5}, {"owl_lmbda", 0.1}}), "'awl' is unknown"));
    EXPECT_TRUE(has_part(error({{"sparsity_profile", "owl"}, {"owl_m", 0}, {"owl_lmbda", 0.1}}), "owl_m must be"));
    EXPECT_TRUE(
        has_part(error({{"sparsity_profile", "owl"}, {"owl_m", 5}, {"owl_lmbda", 0.1}, {"mask_structure", "2:4"}}),
                 "mask_structure 2:4 makes all layers equally sparse"));
    EXPECT_TRUE(has_part(error({{"sparsity_profile", "owl"}, {"owl_m", 5}, {"owl_lmbda", 0.5}}), "below 0.5"));
    EXPECT_TRUE(has_part(error({{"layer_sparsities", {{"model.layers.0", 1}}}}), "layer_sparsities.model.layers.0"));
    EXPECT_TRUE(has_part(error({{"layer_sparsities", OrderedJson::object()}}), "is not a mapping such as"));
    EXPECT_TRUE(has_part(error({{"layer_sparsities", {{"model.layer.1", 0.4}}}}),
                         "model.layer.1, which is no module of the model; did you mean model.layers.1?"));
    EXPECT_TRUE(has_part(error({{"sparsty", 0.5}}), "did you mean sparsity?"));
    EXPECT_TRUE(has_part(error({{"targets", {"re:("}}}), "targets"));
    EXPECT_EQ(error({{"sparsity", nullptr}, {"mask_structure", "2:4"}}), "no error");
  }
  const auto error = [](OrderedJson arguments) {
    arguments["sparsity"] = 0.5;
    return pruning_error("SparseGPTModifier", arguments);
  };
  EXPECT_TRUE(has_part(error({{"block_size", 0}}), "block_size must be positive"));
  EXPECT_TRUE(has_part(error({{"block_size", 6}, {"mask_structure", "2:4"}}), "block_size 6"));
  EXPECT_TRUE(has_part(error({{"dampening_frac", -1}}), "dampening_frac"));
  EXPECT_TRUE(has_part(pruning_error("WandaPruningModifier", {{"sparsity", 0.5}, {"block_size", 128}}), "block_size"));
  EXPECT_TRUE(has_part(pruning_error("WandaPruningModifier", {{"sparsity", 0.5}, {"mask_structure", "2:48"}}),
                       "columns of model.layers.0"));
}

TEST(PruningModifier, TargetsAreLinearsOrWhatIsAroundThem) {
  const auto all = edits_of("WandaPruningModifier", {{"sparsity", 0.5}, {"ignore", {"re:.*lm_head"}}});
  EXPECT_EQ(all.size(), 4u);
  EXPECT_EQ(all.at("model.layers.0.mlp.down_proj"), all.at("model.layers.1.self_attn.q_proj"));
  const auto layers = edits_of("SparseGPTModifier", {{"sparsity", {0.5, 0.25}}, {"targets", {"LlamaDecoderLayer"}}});
  EXPECT_EQ(layers.size(), 4u);
  EXPECT_EQ(layers.at("model.layers.0.mlp.down_proj")->describe(), "50 % sparse");
  EXPECT_EQ(layers.at("model.layers.1.mlp.down_proj")->describe(), "25 % sparse");
  const auto some = edits_of("SparseGPTModifier", {{"sparsity", {0, 0.25}}, {"targets", {"re:.*layers.[01]$"}}});
  EXPECT_EQ(some.size(), 2u);
  const auto groups = edits_of("WandaPruningModifier", {{"sparsity", 0.4}, {"mask_structure", "2:4"}});
  EXPECT_EQ(groups.at("lm_head")->describe(), "2:4 sparse");
  EXPECT_EQ(make_modifier("WandaPruningModifier", {{"sparsity", 0.4}, {"mask_structure", "2:4"}}, "test")
                ->arguments_without_effect(),
            std::vector<std::string>{"sparsity"});
}

TEST(PruningModifier, LayersHaveSparsitiesOfTheirOwn) {
  const auto edits = edits_of(
      "WandaPruningModifier",
      {{"sparsity", 0.5}, {"layer_sparsities", {{"model.layers.0", 0.25}, {"model.layers.1.mlp.down_proj", 0.75}}}});
  EXPECT_EQ(edits.at("model.layers.0.self_attn.q_proj")->describe(), "25 % sparse");
  EXPECT_EQ(edits.at("model.layers.1.mlp.down_proj")->describe(), "75 % sparse");
  EXPECT_EQ(edits.at("model.layers.1.self_attn.q_proj")->describe(), "50 % sparse");
  EXPECT_EQ(edits.at("lm_head")->describe(), "50 % sparse");
}

TEST(OutlierProfile, MoreOutliersMeanFewerZeros) {
  const OutlierProfile profile{.sparsity = 0.6, .factor = 5, .spread = 0.08};
  const std::vector<double> sparsities = sparsities_of(profile, {0.01, 0.03, 0.02, 0.02}, "test");
  EXPECT_EQ(sparsities, (std::vector<double>{0.68, 0.52, 0.6, 0.6}));
  EXPECT_EQ(sparsities_of(profile, {0.01, 0.01}, "test"), (std::vector<double>{0.6, 0.6}));
  EXPECT_THROW((void)sparsities_of({.sparsity = 0.95, .factor = 5, .spread = 0.08}, {0.01, 0.03}, "test"), RecipeError);
}

/// Weights of two linears that read one input, and what is known of it.
struct PrunedLinears {
  PrunedLinears(const quant::QuantizationScheme* scheme, at::ScalarType dtype) {
    at::manual_seed(5);
    const at::Tensor mixing = at::eye(kInputs) + 0.2 * at::randn({kInputs, kInputs});
    const at::Tensor x = at::randn({700, kInputs}).mm(mixing).mul_(at::linspace(0.2, 3, kInputs));
    statistics.tokens = x.size(0);
    at::Tensor gram = at::zeros({kInputs, kInputs});
    kernels::accumulate_gram(gram, x);
    statistics.figures.emplace(compression::GramStatistic::kName, gram);
    statistics.figures.emplace(compression::SquareSum::kName, x.square().sum(0, true));
    for (const std::int64_t rows : {64, 32})
      linears.push_back({"m", at::randn({rows, kInputs}).to(dtype), scheme, dtype});
  }

  std::vector<compression::LinearWeight> linears;
  compression::Statistics statistics;
};

TEST(Wanda, PrunesTheLeastOfEachRow) {
  const PrunedLinears pruned(&quant::dense_scheme(), at::kFloat);
  const auto edited = test::make_edited("WandaPruningModifier", {{"sparsity", 0.6}}, kInputs, nullptr);
  PhaseTimes times;
  const auto results = edited->compress(pruned.linears, &pruned.statistics, times);
  const at::Tensor norms = pruned.statistics.of<compression::SquareSum>().to(at::kDouble).sqrt();
  for (std::size_t i = 0; i < results.size(); ++i) {
    const at::Tensor& weight = pruned.linears[i].weight;
    const at::Tensor scores = weight.to(at::kDouble).abs() * norms;
    const at::Tensor last =
        std::get<0>(scores.sort(1)).select(1, 152).unsqueeze(1);  // floor(0.6 * 256) = 153 are pruned
    EXPECT_TRUE(at::equal(results[i].weight.codes, weight.masked_fill(scores.le(last), 0)));
    EXPECT_EQ(results[i].report.scheme, "60 % sparse");
    EXPECT_EQ(results[i].report.tokens, 700);
  }
}

TEST(MagnitudePruning, PrunesTheLeastOfTheWholeWeight) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    const PrunedLinears pruned(&quant::dense_scheme(), dtype);
    const auto edited = test::make_edited("MagnitudePruningModifier", {{"targets", "Linear"}, {"final_sparsity", 0.3}},
                                          kInputs, nullptr);
    EXPECT_FALSE(edited->needs_data());
    EXPECT_EQ(edited->row_step({64, kInputs}), 0);
    PhaseTimes times;
    const auto results = edited->compress(pruned.linears, nullptr, times);
    for (std::size_t i = 0; i < results.size(); ++i) {
      const at::Tensor& weight = pruned.linears[i].weight;
      const auto count = static_cast<std::int64_t>(0.3 * static_cast<double>(weight.numel()));
      const at::Tensor last = std::get<0>(weight.abs().view({-1}).sort())[count - 1];
      EXPECT_TRUE(at::equal(results[i].weight.codes, at::where(weight.abs().gt(last), weight, 0)));
      EXPECT_EQ(results[i].weight.codes.scalar_type(), dtype);
      EXPECT_EQ(results[i].report.scheme, "30 % sparse");
    }
  }
}

TEST(MagnitudePruning, RefusesByName) {
  const auto error = [](OrderedJson arguments) {
    arguments["targets"] = "Linear";
    if (!arguments.contains("final_sparsity")) arguments["final_sparsity"] = 0.5;
    return pruning_error("MagnitudePruningModifier", arguments);
  };
  EXPECT_EQ(error({{"init_sparsity", 0.05}, {"update_scheduler", "cubic"}}), "no error");
  EXPECT_TRUE(has_part(error({{"final_sparsity", 1}}), "final_sparsity must be a number between 0 and 1"));
  EXPECT_TRUE(has_part(error({{"mask_structure", "2:4"}}), "use WandaPruningModifier"));
  EXPECT_TRUE(has_part(error({{"apply_globally", true}}), "apply_globally"));
  EXPECT_TRUE(has_part(error({{"sparsity", 0.5}}), "unknown argument 'sparsity'"));
  EXPECT_TRUE(has_part(pruning_error("ConstantPruningModifier", OrderedJson::object()), "targets is missing"));
  EXPECT_EQ(make_modifier("MagnitudePruningModifier",
                          {{"targets", "Linear"}, {"init_sparsity", 0.1}, {"final_sparsity", 0.5}}, "test")
                ->arguments_without_effect(),
            std::vector<std::string>{"init_sparsity"});
}

TEST(ConstantPruning, LaterStepsKeepItsZeros) {
  const auto rounding = test::make_quantizer(
      "QuantizationModifier",
      {{"config_groups",
        {{"g",
          {{"targets", {"Linear"}},
           {"weights", {{"num_bits", 4}, {"symmetric", false}, {"strategy", "group"}, {"group_size", 32}}}}}}}},
      "test");
  PrunedLinears pruned(rounding->scheme_for({"m", {"Linear"}}), at::kFloat);
  for (compression::LinearWeight& linear : pruned.linears) linear.weight.slice(1, 0, kInputs, 4).fill_(5e-9);
  const auto edited = test::make_edited("ConstantPruningModifier", {{"targets", "Linear"}}, kInputs, rounding.get());
  EXPECT_FALSE(edited->needs_data());
  PhaseTimes times;
  const auto results = edited->compress(pruned.linears, nullptr, times);
  const at::Tensor values =
      quant::dequantize(*pruned.linears[0].scheme, results[0].weight, pruned.linears[0].weight.scalar_type());
  EXPECT_TRUE(values.slice(1, 0, kInputs, 4).eq(0).all().item<bool>());
  EXPECT_LT(values.eq(0).to(at::kFloat).mean().item<double>(), 0.5);
}

TEST(Pruning, InputsWithoutTokensLeaveTheMagnitudes) {
  for (const char* type : {"WandaPruningModifier", "SparseGPTModifier"}) {
    PrunedLinears pruned(&quant::dense_scheme(), at::kFloat);
    for (auto& [name, figures] : pruned.statistics.figures) figures.zero_();
    pruned.statistics.tokens = 0;
    const auto edited = test::make_edited(type, {{"sparsity", nullptr}, {"mask_structure", "2:4"}}, kInputs, nullptr);
    PhaseTimes times;
    const auto results = edited->compress(pruned.linears, &pruned.statistics, times);
    const at::Tensor& weight = pruned.linears[0].weight;
    const at::Tensor expected = weight.masked_fill(kernels::least_scores(weight.abs(), {0, 2, 4}), 0);
    EXPECT_TRUE(at::equal(results[0].weight.codes, expected)) << type;
    EXPECT_TRUE(has_part(results[0].report.fallback, "pruned by magnitude (no tokens")) << results[0].report.fallback;
  }
}

TEST(SparseGpt, PreservesZerosOrRefuses) {
  PrunedLinears pruned(&quant::dense_scheme(), at::kBFloat16);
  for (compression::LinearWeight& linear : pruned.linears) linear.weight.slice(1, 0, kInputs, 4).zero_();
  PhaseTimes times;
  const auto more =
      test::make_edited("SparseGPTModifier", {{"sparsity", 0.5}, {"preserve_sparsity_mask", true}}, kInputs, nullptr);
  for (const auto& result : more->compress(pruned.linears, &pruned.statistics, times)) {
    EXPECT_TRUE(result.weight.codes.slice(1, 0, kInputs, 4).eq(0).all().item<bool>());
    EXPECT_NEAR(result.weight.codes.eq(0).to(at::kFloat).mean().item<double>(), 0.5, 0.001);
    EXPECT_EQ(result.weight.codes.scalar_type(), at::kBFloat16);
  }
  const auto fewer =
      test::make_edited("SparseGPTModifier", {{"sparsity", 0.1}, {"preserve_sparsity_mask", true}}, kInputs, nullptr);
  EXPECT_THROW(fewer->compress(pruned.linears, &pruned.statistics, times), RecipeError);
}

struct EncodedCase {
  std::string name;
  const char* type;
  Json arguments;
};

void PrintTo(const EncodedCase& c, std::ostream* out) { *out << c.name; }

std::vector<EncodedCase> encoded_cases() {
  const Json asymmetric = {
      {"group_0",
       {{"targets", {"Linear"}},
        {"weights", {{"num_bits", 4}, {"symmetric", false}, {"strategy", "group"}, {"group_size", 32}}}}}};
  std::vector<EncodedCase> cases;
  for (const char* type : {"GPTQModifier", "QuantizationModifier"}) {
    const std::string prefix = type[0] == 'G' ? "Gptq" : "Nearest";
    for (const char* scheme : {"W4A16", "W8A16", "FP8_DYNAMIC", "NVFP4A16", "MXFP4A16"})
      cases.push_back({prefix + scheme, type, {{"scheme", scheme}}});
  }
  cases.push_back({"GptqAsymmetric", "GPTQModifier", {{"config_groups", asymmetric}}});
  cases.push_back({"GptqUnordered", "GPTQModifier", {{"config_groups", asymmetric}, {"actorder", nullptr}}});
  cases.push_back({"GptqSearching", "GPTQModifier", {{"config_groups", asymmetric}, {"observer", "gptq"}}});
  cases.push_back({"NearestAsymmetric", "QuantizationModifier", {{"config_groups", asymmetric}}});
  return cases;
}

class EncodedTest : public ::testing::TestWithParam<EncodedCase> {};

TEST_P(EncodedTest, ZerosAreExactAfterDecoding) {
  const auto encoding = test::make_quantizer(GetParam().type, GetParam().arguments, "test");
  const quant::QuantizationScheme* scheme = encoding->scheme_for({"m", {"Linear"}});
  for (const char* pruning : {"SparseGPTModifier", "WandaPruningModifier"}) {
    const PrunedLinears pruned(scheme, at::kBFloat16);
    const Json arguments = {{"sparsity", 0.5}, {"mask_structure", "2:4"}};
    PhaseTimes times;
    const auto dense = test::make_edited(pruning, arguments, kInputs, nullptr);
    std::vector<compression::LinearWeight> as_dense = pruned.linears;
    for (auto& linear : as_dense) linear.scheme = &quant::dense_scheme();
    const auto sparse = dense->compress(as_dense, &pruned.statistics, times);
    const auto both = test::make_edited(pruning, arguments, kInputs, encoding.get());
    const auto results = both->compress(pruned.linears, &pruned.statistics, times);
    for (std::size_t i = 0; i < results.size(); ++i) {
      const at::Tensor decoded = quant::dequantize(*scheme, results[i].weight, at::kFloat);
      const at::Tensor zeros = sparse[i].weight.codes.eq(0);
      EXPECT_TRUE(decoded.masked_select(zeros).eq(0).all().item<bool>()) << pruning;
      EXPECT_TRUE(zeros.view({-1, 4}).sum(1).eq(2).all().item<bool>()) << pruning;
      EXPECT_LT((decoded - sparse[i].weight.codes).norm().item<double>(),
                0.5 * sparse[i].weight.codes.norm().item<double>());
      EXPECT_TRUE(has_part(results[i].report.scheme, "2:4 sparse, ")) << results[i].report.scheme;
    }
    // The error is that of both steps together.
    const bool knows_outputs = results[0].report.output_error.has_value();
    EXPECT_EQ(knows_outputs, both->statistics_wanted({}).front()->name() == "gram" || GetParam().type[0] == 'G');
    if (!knows_outputs) continue;
    const at::Tensor gram =
        kernels::symmetric_from_upper(pruned.statistics.of<compression::GramStatistic>()).to(at::kDouble);
    double loss = 0;
    for (std::size_t i = 0; i < results.size(); ++i) {
      const at::Tensor difference =
          pruned.linears[i].weight.to(at::kDouble) - quant::dequantize(*scheme, results[i].weight, at::kBFloat16);
      loss += (difference.mm(gram) * difference).sum().item<double>();
    }
    EXPECT_NEAR(*results[0].report.output_error / (loss / 96 / 700), 1.0, 1e-3);
  }
}

INSTANTIATE_TEST_SUITE_P(Encodings, EncodedTest, ::testing::ValuesIn(encoded_cases()),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace layerpress::modifier
