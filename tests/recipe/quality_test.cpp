#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "layerpress/base/error.h"
#include "layerpress/recipe/recipe_of_options.h"

namespace layerpress::recipe {
namespace {

/// Arguments of the one modifier that the options ask for.
Json arguments_of(const OneshotOptions& options) { return recipe_of(options).modifiers.at(0).arguments; }

OneshotOptions with(const std::string& quality, const std::string& algorithm = "gptq") {
  OneshotOptions options;
  options.quality = quality;
  options.algorithm = algorithm;
  return options;
}

std::string usage_error(const OneshotOptions& options) {
  try {
    recipe_of(options);
  } catch (const UsageError& error) {
    return error.what();
  }
  return "no error";
}

bool says(const std::string& message, const std::string& part) { return message.find(part) != std::string::npos; }

TEST(Quality, FillsInWhatOptionsLeaveOpen) {
  EXPECT_EQ(arguments_of(with("fast"))["weight_observer"], "minmax");
  EXPECT_FALSE(arguments_of(with("fast")).contains("error_propagation"));
  for (const char* algorithm : {"gptq", "rtn"}) {
    EXPECT_FALSE(arguments_of(with("balanced", algorithm)).contains("weight_observer"));
    EXPECT_FALSE(arguments_of(with("balanced", algorithm)).contains("error_propagation"));
    EXPECT_EQ(arguments_of(OneshotOptions(with("balanced", algorithm))).dump(), arguments_of([&] {
                                                                                  OneshotOptions options;
                                                                                  options.algorithm = algorithm;
                                                                                  return options;
                                                                                }())
                                                                                    .dump());
  }
  EXPECT_EQ(arguments_of(with("fast", "rtn"))["weight_observer"], "minmax");
  EXPECT_EQ(arguments_of(with("best"))["error_propagation"], true);
  EXPECT_EQ(arguments_of(with("best"))["weight_observer"], "gptq");
}

TEST(Quality, MaxRotatesFirst) {
  const Recipe recipe = recipe_of(with("max"));
  ASSERT_EQ(recipe.modifiers.size(), 3u);
  EXPECT_EQ(recipe.modifiers[0].type, "SpinQuantModifier");
  EXPECT_EQ(recipe.modifiers[1].type, "ErrorPropagationModifier");
  EXPECT_EQ(recipe.modifiers[2].type, "GPTQModifier");
  Json arguments = arguments_of(with("best"));
  arguments["coordinate_descent"] = true;
  EXPECT_EQ(Json(recipe.modifiers[2].arguments), arguments);
  OneshotOptions whole = with("max");
  whole.ignore = {};  // the head is compressed
  EXPECT_EQ(recipe_of(whole).modifiers.size(), 2u);
  whole.ignore = {"re:.*q_proj", "re:.*lm_head"};
  EXPECT_EQ(recipe_of(whole).modifiers.size(), 3u);
  whole.ignore = {"re:(lm_head"};
  EXPECT_EQ(recipe_of(whole).modifiers.size(), 2u);  // GPTQModifier refuses the pattern
  EXPECT_TRUE(says(usage_error(with("max", "rtn")), "--quality max"));
  EXPECT_EQ(recipe.modifiers[0].arguments.dump(), R"({"where_possible":true})");
}

TEST(Quality, MaxRotatesAsTheFormatLikesIt) {
  OneshotOptions options = with("max");
  options.scheme = "MXFP4A16";
  EXPECT_EQ(recipe_of(options).modifiers[0].arguments.dump(), R"({"where_possible":true,"transform_block_size":32})");
  options.scheme = "NVFP4A16";
  ASSERT_EQ(recipe_of(options).modifiers.size(), 1u);
  options.recipe =
      R"({"s_stage": {"s_modifiers": {"GPTQModifier": {"config_groups": {"a": {"targets": ["Linear"], "weights":
      {"num_bits": 4, "type": "float", "strategy": "group", "group_size": 32}}}}}}})";
  options.scheme = OneshotOptions().scheme;
  EXPECT_EQ(recipe_of(options).modifiers[0].arguments.dump(), R"({"where_possible":true,"transform_block_size":32})");
}

TEST(Quality, MaxSmoothsInputsOf4Bits) {
  OneshotOptions options = with("max");
  for (const auto& [scheme, strength] : {std::pair("MXFP4", "0.9"), std::pair("NVFP4", "0.7")}) {
    options.scheme = scheme;
    const Recipe recipe = recipe_of(options);
    ASSERT_EQ(recipe.modifiers.size(), 3u);
    EXPECT_EQ(recipe.modifiers[0].arguments.dump(), R"({"rotations":["R2"],"where_possible":true})");
    EXPECT_EQ(recipe.modifiers[1].type, "SmoothQuantModifier");
    EXPECT_EQ(recipe.modifiers[1].arguments.dump(), fmt::format(R"({{"smoothing_strength":{}}})", strength));
  }
  options.scheme = OneshotOptions().scheme;
  options.recipe = R"({"s_stage": {"s_modifiers": {"SmoothQuantModifier": {}, "GPTQModifier": {"scheme": "NVFP4"}}}})";
  const Recipe recipe = recipe_of(options);
  ASSERT_EQ(recipe.modifiers.size(), 3u);
  EXPECT_EQ(recipe.modifiers[0].type, "SpinQuantModifier");
  EXPECT_EQ(recipe.modifiers[1].arguments.dump(), "{}");
}

TEST(Quality, FillsInGroupsToo) {
  OneshotOptions options = with("fast");
  options.group_size = 64;
  EXPECT_EQ(arguments_of(options)["config_groups"]["group_0"]["weights"]["observer"], "minmax");
  options.quality = "best";
  EXPECT_EQ(arguments_of(options)["config_groups"]["group_0"]["weights"]["observer"], "gptq");
}

TEST(Quality, GivenObserversWin) {
  for (const char* quality : {"fast", "best"}) {
    OneshotOptions options = with(quality);
    options.observer = "mse";
    EXPECT_EQ(arguments_of(options)["weight_observer"], "mse") << quality;
  }
}

TEST(Quality, RefusesWhatItCannotMean) {
  EXPECT_TRUE(
      says(usage_error(with("super")), "--quality: unknown value 'super'; choose from fast, balanced, best, max"));
  EXPECT_TRUE(says(usage_error(with("best", "rtn")), "--quality best"));
  EXPECT_TRUE(says(usage_error(with("best", "rtn")), "calibration data"));
}

class QualityOfRecipeTest : public testing::Test {
 protected:
  ~QualityOfRecipeTest() override { std::filesystem::remove(path_); }
  OneshotOptions options(const std::string& quality, const std::string& modifiers) const {
    std::ofstream(path_) << "s_stage:\n  m_modifiers:\n    " << modifiers << "\n";
    OneshotOptions options = with(quality);
    options.recipe = path_;
    return options;
  }
  std::filesystem::path path_ = std::filesystem::path(testing::TempDir()) / fmt::format("quality_{}.yaml", ::getpid());
};

TEST_F(QualityOfRecipeTest, FillsInWhatTheRecipeLeavesOpen) {
  EXPECT_EQ(arguments_of(options("best", "GPTQModifier: {scheme: W4A16}"))["error_propagation"], true);
  EXPECT_EQ(arguments_of(options("fast", "GPTQModifier: {scheme: W4A16}"))["weight_observer"], "minmax");
  EXPECT_EQ(
      arguments_of(options("fast", "GPTQModifier: {scheme: W4A16, config_groups: , observer: }"))["weight_observer"],
      "minmax");
  EXPECT_EQ(arguments_of(options("balanced", "GPTQModifier: {scheme: W4A16}")), Json::parse(R"({"scheme": "W4A16"})"));
}

TEST_F(QualityOfRecipeTest, KeysOfTheRecipeWin) {
  for (const char* value : {"null", "false", "{strength: 0.25}"}) {
    const std::string text = fmt::format("GPTQModifier: {{scheme: W4A16, error_propagation: {}}}", value);
    Json expected = arguments_of(options("balanced", text));
    expected["weight_observer"] = "gptq";
    EXPECT_EQ(arguments_of(options("best", text)), expected) << value;
  }
  for (const char* key : {"observer: mse", "weight_observer: hessian"}) {
    const std::string text = fmt::format("GPTQModifier: {{scheme: W4A16, {}}}", key);
    EXPECT_EQ(arguments_of(options("fast", text)), arguments_of(options("balanced", text))) << key;
  }
  const Json groups = arguments_of(options("fast",
                                           "GPTQModifier: {config_groups: {a: {targets: [Linear], weights: {num_bits: "
                                           "4, observer: mse}}, b: {targets: [x], weights: {num_bits: 8}}}}"));
  EXPECT_EQ(groups["config_groups"]["a"]["weights"]["observer"], "mse");
  EXPECT_EQ(groups["config_groups"]["b"]["weights"]["observer"], "minmax");
  EXPECT_FALSE(groups.contains("weight_observer"));
}

TEST_F(QualityOfRecipeTest, OptionsThatTheRecipeReplacesAreRefused) {
  for (const char* option : {"algorithm", "scheme", "group-size", "observer", "targets", "ignore"}) {
    OneshotOptions stated = options("balanced", "GPTQModifier: {scheme: W4A16}");
    stated.given = {"recipe", "quality", option};  // with its default's value
    EXPECT_TRUE(says(usage_error(stated), std::string("--") + option + " and --recipe")) << usage_error(stated);
  }
  OneshotOptions differing = options("balanced", "GPTQModifier: {scheme: W4A16}");
  differing.scheme = "W8A8";
  EXPECT_TRUE(says(usage_error(differing), "--scheme and --recipe"));
  OneshotOptions other = options("balanced", "GPTQModifier: {scheme: W4A16}");
  other.given = {"recipe", "quality", "threads"};
  EXPECT_EQ(usage_error(other), "no error");
}

TEST_F(QualityOfRecipeTest, BestNeedsGptq) {
  EXPECT_TRUE(says(usage_error(options("best", "QuantizationModifier: {scheme: W4A16}")), "--quality best"));
}

}  // namespace
}  // namespace layerpress::recipe
