#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "layerpress/modifier/all_modifiers.h"
#include "layerpress/quant/compressed_weight.h"
#include "tests/modifier/quantizers.h"

namespace layerpress::modifier {
namespace {

std::string error_of(const std::string& type, const OrderedJson& arguments) {
  try {
    test::make_quantizer(type, arguments, "test.yaml");
  } catch (const RecipeError& error) {
    return error.what();
  }
  return "no error";
}

bool says(const std::string& message, const std::string& part) { return message.find(part) != std::string::npos; }

TEST(MakeModifier, RefusesByName) {
  const Json w4 = {{"scheme", "W4A16"}};
  EXPECT_TRUE(says(error_of("QuIPModifier", w4), "QuIPModifier is not implemented; its rotations"));
  EXPECT_TRUE(says(error_of("MoNEPruningModifier", w4), "use REAPPruningModifier"));
  EXPECT_TRUE(says(error_of("QADModifier", w4), "use GPTQModifier with --quality best"));
  EXPECT_TRUE(says(error_of("GPTQModifer", w4), "did you mean GPTQModifier?"));
  EXPECT_TRUE(says(error_of("GPTQModifier", {{"scheme", "W4A17"}}), "W4A16"));
  EXPECT_TRUE(says(error_of("GPTQModifier", {{"scheme", "W4A16"}, {"dampening_fraction", 0.1}}), "dampening_frac"));
  EXPECT_TRUE(says(error_of("QuantizationModifier", {{"scheme", "W4A16"}, {"block_size", 64}}), "block_size"));
  EXPECT_TRUE(says(error_of("GPTQModifier", {{"scheme", "W4A16"}, {"actorder", "group"}}), "actorder 'group'"));
  EXPECT_TRUE(says(error_of("GPTQModifier", Json::object()), "config_groups"));
  EXPECT_TRUE(says(error_of("GPTQModifier", {{"scheme", "W4A16"}, {"kv_cache_scheme", {{"dynamic", true}}}}),
                   "kv_cache_scheme"));
  EXPECT_TRUE(says(error_of("GPTQModifier", {{"scheme", "W4A16"}, {"weight_observer", "percentile"}}), "percentile"));
  EXPECT_TRUE(says(error_of("GPTQModifier", {{"scheme", "W4A16"}, {"ignore", 5}}), "ignore"));
  EXPECT_EQ(error_of("GPTQModifier", {{"scheme", "W4A16"}, {"index", nullptr}, {"batched_quantization", "auto"}}),
            "no error");
}

TEST(CoordinateDescent, ArgumentsAreChecked) {
  const auto refusal = [](const Json& value) {
    return error_of("GPTQModifier", {{"scheme", "W4A16"}, {"coordinate_descent", value}});
  };
  EXPECT_TRUE(says(refusal({{"sweeps", 0}}), "sweeps must be from 1 to 100"));
  EXPECT_TRUE(says(refusal({{"damping", -1}}), "damping must be from 0 to 1e6"));
  EXPECT_TRUE(says(refusal({{"rounds", 3}}), "rounds"));
  EXPECT_TRUE(says(refusal("yes"), "must be true, false or a mapping of sweeps and damping"));
  EXPECT_NO_THROW(
      test::make_quantizer("GPTQModifier", {{"scheme", "W4A16"}, {"coordinate_descent", false}}, "test.yaml"));
}

TEST(AutoRound, IsGptqTowardsTheOriginalModel) {
  const Json w4 = {{"scheme", "W4A16"}, {"iters", 100}, {"lr", nullptr}};
  const auto autoround = test::make_quantizer("AutoRoundModifier", w4, "test.yaml");
  EXPECT_EQ(autoround->type(), "AutoRoundModifier");
  EXPECT_TRUE(autoround->wants_original());
  EXPECT_EQ(autoround->scheme_groups().front().scheme->weights->observer, "gptq");
  EXPECT_TRUE(says(autoround->note(), "--quality 'best'"));
  EXPECT_EQ(autoround->arguments_without_effect(), std::vector<std::string>{"iters"});
  EXPECT_ANY_THROW(test::make_quantizer("AutoRoundModifier", {{"scheme", "W4A16"}, {"iters", "many"}}, "test.yaml"));
  EXPECT_TRUE(says(error_of("AutoRoundModifier", {{"scheme", "W4A16"}, {"actorder", "static"}}), "actorder"));
}

TEST(SchemeFor, ExactNameBeatsRegexBeatsClass) {
  const Json groups = {
      {"group_0", {{"targets", {"Linear"}}, {"weights", {{"num_bits", 8}, {"strategy", "channel"}}}}},
      {"group_1", {{"targets", {"re:.*down_proj$"}}, {"weights", {{"num_bits", 4}, {"strategy", "channel"}}}}},
      {"group_2", {{"targets", {"a.down_proj"}}, {"weights", {{"num_bits", 3}, {"strategy", "channel"}}}}}};
  const auto modifier =
      test::make_quantizer("GPTQModifier", {{"config_groups", groups}, {"ignore", {"re:.*head"}}}, "test");
  const auto bits = [&](const char* name) { return modifier->scheme_for({name, {"Linear"}})->weights->num_bits; };
  EXPECT_EQ(bits("a.up_proj"), 8);
  EXPECT_EQ(bits("b.down_proj"), 4);
  EXPECT_EQ(bits("a.down_proj"), 3);
  EXPECT_EQ(modifier->scheme_for({"lm_head", {"Linear"}}), nullptr);
  EXPECT_EQ(modifier->scheme_for({"norm", {"LlamaRMSNorm"}}), nullptr);
}

/// What a modifier does not use, joined.
std::string without_effect(const std::string& type, Json arguments) {
  if (type != "AWQModifier") arguments["scheme"] = "W4A16";
  const auto modifier = make_modifier(type, arguments, "test.yaml");
  std::string names;
  for (const std::string& name : modifier->arguments_without_effect()) names += name + " ";
  return names;
}

TEST(Arguments, FieldsOfTrainingAreAcceptedAndNamed) {
  const Json all = {{"index", 3},
                    {"group", "quant"},
                    {"start", 0},
                    {"end", 1.5},
                    {"update", 0.5},
                    {"requires_calibration_data", true},
                    {"initialized_", false},
                    {"ended_", false},
                    {"offload_hessians", false},
                    {"bypass_divisibility_checks", false}};
  for (const char* type : {"GPTQModifier", "QuantizationModifier"})
    EXPECT_EQ(without_effect(type, all),
              "end ended_ group index initialized_ offload_hessians requires_calibration_data start update ");
  EXPECT_EQ(without_effect("GPTQModifier", {{"index", nullptr}, {"start", nullptr}, {"batched_quantization", "auto"}}),
            "");
  EXPECT_EQ(without_effect("GPTQModifier", {{"batched_quantization", 4}}), "batched_quantization ");
  const Json mapping = {{"smooth_layer", "a"}, {"balance_layers", Json::array({"b"})}, {"activation_hook_target", "c"}};
  EXPECT_EQ(without_effect("AWQModifier", {{"mappings", Json::array({mapping})}}), "mappings.activation_hook_target ");
  EXPECT_EQ(without_effect("GPTQModifier", {{"batched_quantization", true}}), "batched_quantization ");
}

TEST(Arguments, FieldsOfTrainingHaveTheirTypes) {
  const Json wrong = {{"index", 1.5},
                      {"group", 2},
                      {"start", "x"},
                      {"initialized_", true},
                      {"requires_calibration_data", 1},
                      {"batched_quantization", 0}};
  for (const auto& [key, value] : wrong.items())
    EXPECT_TRUE(says(error_of("GPTQModifier", {{"scheme", "W4A16"}, {key, value}}), key)) << key;
  for (const char* key : {"block_size", "dampening_frac"})
    EXPECT_TRUE(says(error_of("GPTQModifier", {{"scheme", "W4A16"}, {key, nullptr}}), std::string(key) + " is null"));
}

Json group_of(const Json& targets, Json weights) {
  weights["type"] = weights["strategy"] == "block" ? "float" : "int";
  if (weights["strategy"] == "group") weights["group_size"] = 32;
  if (weights["strategy"] == "block") weights["block_structure"] = {16, 16};
  return {{"targets", targets}, {"weights", weights}};
}

/// The activation order of a group under the modifier's; "given" is left out where it is false.
Json actorder_of(const std::string& strategy, const Json& own, const Json& given) {
  Json group = group_of({"Linear"}, {{"strategy", strategy}});
  if (own != Json(false)) group["weights"]["actorder"] = own;
  Json arguments = {{"config_groups", {{"a", group}}}};
  if (given != Json(false)) arguments["actorder"] = given;
  const auto modifier = test::make_quantizer("GPTQModifier", arguments, "test");
  const auto& order = modifier->scheme_for({"m", {"Linear"}})->weights->actorder;
  return order ? Json(*order) : Json();
}

TEST(Gptq, ActivationOrderIsLLMCompressors) {
  for (const char* strategy : {"tensor", "channel", "group", "block"}) {
    EXPECT_EQ(actorder_of(strategy, false, false), "static") << strategy;
    EXPECT_EQ(actorder_of(strategy, nullptr, false), "static") << strategy;
    EXPECT_EQ(actorder_of(strategy, false, nullptr), nullptr) << strategy;
    EXPECT_EQ(actorder_of(strategy, nullptr, "weight"), "weight") << strategy;
    EXPECT_EQ(actorder_of(strategy, "weight", false), "weight") << strategy;
    EXPECT_EQ(actorder_of(strategy, "static", "static"), "static") << strategy;
    EXPECT_EQ(actorder_of(strategy, "weight", "static"), "weight") << strategy;
    EXPECT_THROW(actorder_of(strategy, "static", nullptr), RecipeError) << strategy;
    EXPECT_THROW(actorder_of(strategy, "group", false), RecipeError) << strategy;
    EXPECT_THROW(actorder_of(strategy, false, "dynamic"), RecipeError) << strategy;
  }
}

TEST(Observers, ThatNobodyNamesAreNamedInTheScheme) {
  const auto observer = [](const char* type, const char* scheme) {
    const auto modifier = test::make_quantizer(type, {{"scheme", scheme}}, "test");
    return modifier->scheme_for({"m", {"Linear"}})->weights->observer;
  };
  EXPECT_EQ(observer("QuantizationModifier", "W4A16"), "mse");
  EXPECT_EQ(observer("QuantizationModifier", "FP8_DYNAMIC"), "mse");
  EXPECT_EQ(observer("QuantizationModifier", "MXFP4A16"), "squared_error");
  EXPECT_EQ(observer("QuantizationModifier", "NVFP4A16"), "squared_error");
  EXPECT_EQ(observer("GPTQModifier", "NVFP4A16"), "hessian");
}

TEST(Observers, StayAsTheyAreWritten) {
  for (const char* name : {"memoryless_minmax", "minmax", "static_minmax", "mse", "memoryless_mse", "MSE",
                           "memoryless-mse", "squared_error"})
    for (const char* key : {"weight_observer", "observer"}) {
      const auto modifier = test::make_quantizer("QuantizationModifier", {{"scheme", "W4A16"}, {key, name}}, "test");
      EXPECT_EQ(modifier->scheme_for({"m", {"Linear"}})->weights->observer, name);
    }
}

TEST(SchemeFor, OverlappingPatternsAreAskedByAlphabet) {
  const auto bits = [](const OrderedJson& groups, const char* name) {
    OrderedJson arguments;
    arguments["config_groups"] = groups;
    return test::make_quantizer("GPTQModifier", arguments, "test")->scheme_for({name, {"Linear"}})->weights->num_bits;
  };
  const Json eight = {{"strategy", "channel"}, {"num_bits", 8}}, four = {{"strategy", "channel"}, {"num_bits", 4}};
  const OrderedJson groups = {{"a", group_of({"re:.*mlp.*"}, eight)}, {"b", group_of({"re:.*down_proj"}, four)}};
  EXPECT_EQ(bits(groups, "m.mlp.down_proj"), 4);
  EXPECT_EQ(bits(groups, "m.mlp.up_proj"), 8);
  // One target in two groups is the later one's, in the order of the file.
  OrderedJson twice;
  twice["z"] = group_of({"Linear"}, eight);
  twice["a"] = group_of({"Linear"}, four);
  EXPECT_EQ(bits(twice, "m"), 4);
}

/// A GPTQ run on one module under a given Gram matrix.
compression::CompressedModule compress(const at::Tensor& gram, const Json& extra = Json::object()) {
  Json arguments = {
      {"config_groups",
       {{"group_0",
         {{"targets", {"Linear"}}, {"weights", {{"num_bits", 4}, {"strategy", "group"}, {"group_size", 32}}}}}}}};
  arguments.update(extra);
  const auto modifier = test::make_quantizer("GPTQModifier", arguments, "test");
  at::manual_seed(31);
  const compression::LinearWeight linear{"m", at::randn({16, 64}), modifier->scheme_for({"m", {"Linear"}}),
                                         at::kBFloat16};
  const compression::Statistics statistics{{{"gram", gram}}, 10};
  PhaseTimes times;
  return modifier->compress({linear}, &statistics, times).at(0);
}

TEST(Gptq, ReportsItsFallbacks) {
  const at::Tensor good = at::eye(64);
  EXPECT_EQ(compress(good).report.fallback, "");
  EXPECT_EQ(compress(good).report.tokens, 10);

  at::Tensor hard = at::eye(64);
  hard[1][2] = 1.04;  // indefinite by a little: more dampening mends it
  EXPECT_EQ(compress(hard).report.fallback, "dampening 0.1");

  at::Tensor impossible = at::eye(64);
  impossible[1][2] = 1e6;
  EXPECT_EQ(compress(impossible).report.fallback, "round-to-nearest (factorization failed)");

  at::Tensor infinite = at::eye(64);
  infinite[3][3] = INFINITY;
  EXPECT_EQ(compress(infinite, {{"weight_observer", "minmax"}}).report.fallback,
            "round-to-nearest (non-finite inputs)");
}

/// (w - dequantized) gram (w - dequantized)ᵀ of a weight that was compressed by 4 bits in groups of 32.
double output_error(const Json& arguments, const at::Tensor& gram) {
  Json weights = {{"num_bits", 4}, {"strategy", "group"}, {"group_size", 32}};
  weights.update(arguments);
  const Json groups = {{"config_groups", {{"group_0", {{"targets", {"Linear"}}, {"weights", weights}}}}}};
  const auto modifier = test::make_quantizer("GPTQModifier", groups, "test");
  at::manual_seed(33);
  const compression::LinearWeight linear{"m", at::randn({48, gram.size(0)}), modifier->scheme_for({"m", {"Linear"}}),
                                         at::kBFloat16};
  const compression::Statistics statistics{{{"gram", gram}}, 1000};
  PhaseTimes times;
  const auto result = modifier->compress({linear}, &statistics, times).at(0);
  const at::Tensor left = linear.weight - quant::dequantize(*linear.scheme, result.weight, at::kFloat);
  const double error = left.mm(gram).mul(left).sum().item<double>();
  const double reported = *result.report.output_error * 48 * 1000;
  EXPECT_GT(reported, error);  // it has dampening in it
  EXPECT_LT(reported, 1.3 * error);
  return error;
}

TEST(Gptq, ScalesOfTheSolveLeaveTheLeastError) {
  at::manual_seed(32);
  const at::Tensor x =
      (at::randn({1000, 160}).mm(at::eye(160) + 0.2 * at::randn({160, 160}))) * at::linspace(0.2, 2, 160);
  const at::Tensor gram = x.t().mm(x);
  for (const bool symmetric : {true, false})
    for (const char* order : {"static", "null"}) {
      Json arguments = {{"symmetric", symmetric}};
      if (std::string(order) == "static") arguments["actorder"] = order;
      arguments["observer"] = "gptq";
      const double searched = output_error(arguments, gram);
      for (const char* observer : {"minmax", "mse", "hessian"}) {
        arguments["observer"] = observer;
        EXPECT_LT(searched, 0.97 * output_error(arguments, gram)) << observer << order << symmetric;
      }
    }
}

TEST(Gptq, WholeChannelsGetTheirScalesBefore) {
  at::manual_seed(34);
  const at::Tensor x = at::randn({600, 192});
  const at::Tensor gram = x.t().mm(x);
  const Json channel = {{"strategy", "channel"}, {"group_size", nullptr}};
  Json during = channel, before = channel;
  during["observer"] = "gptq";
  before["observer"] = "hessian";
  EXPECT_NEAR(output_error(during, gram) / output_error(before, gram), 1.0, 0.02);  // of fewer clippings
}

TEST(Gptq, RefusesScalesThatOverflow) {
  const auto modifier = test::make_quantizer("GPTQModifier", {{"scheme", "W4A16"}, {"observer", "gptq"}}, "test");
  const compression::LinearWeight linear{"m", at::full({16, 128}, 1e6), modifier->scheme_for({"m", {"Linear"}}),
                                         at::kHalf};
  const compression::Statistics statistics{{{"gram", at::eye(128)}}, 10};
  PhaseTimes times;
  EXPECT_THROW(modifier->compress({linear}, &statistics, times), RecipeError);
}

TEST(QuantizationModifier, HasNoSolveToChooseScalesIn) {
  try {
    test::make_quantizer("QuantizationModifier", {{"scheme", "W4A16"}, {"observer", "gptq"}}, "test");
    FAIL();
  } catch (const RecipeError& error) {
    EXPECT_NE(std::string(error.what()).find("hessian"), std::string::npos) << error.what();
  }
}

TEST(Gptq, RoundsToNearestWhenItFallsBack) {
  at::Tensor impossible = at::eye(64);
  impossible[1][2] = 1e6;
  const Json minmax = {{"weight_observer", "minmax"}};
  const auto fallen = compress(impossible, minmax), independent = compress(at::eye(64), minmax);
  // With independent inputs GPTQ is round-to-nearest, too.
  EXPECT_TRUE(at::equal(fallen.weight.codes, independent.weight.codes));
  EXPECT_TRUE(at::equal(fallen.weight.scale, independent.weight.scale));
}

}  // namespace
}  // namespace layerpress::modifier
