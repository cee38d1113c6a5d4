#include "layerpress/recipe/separate_scaling.h"

#include <gtest/gtest.h>

#include "layerpress/base/error.h"

namespace layerpress::recipe {
namespace {

std::string separated(const std::string& modifiers) {
  std::string text;
  for (const ModifierEntry& entry :
       with_separate_scaling(parse_recipe("x_stage: {x_modifiers: {" + modifiers + "}}", "r.yaml")).modifiers)
    text += entry.type + " " + entry.arguments.dump() + " ";
  return text;
}

TEST(SeparateScalingTest, AnAwqModifierWithASchemeBecomesTwoModifiers) {
  EXPECT_EQ(separated("AWQModifier: {ignore: [lm_head], scheme: W4A16_ASYM, targets: [Linear], duo_scaling: both}"),
            R"(AWQModifier {"duo_scaling":"both"} )"
            R"(QuantizationModifier {"ignore":["lm_head"],"scheme":"W4A16_ASYM","targets":["Linear"]} )");
}

TEST(SeparateScalingTest, OthersStayAsTheyAre) {
  const std::string both = R"(AWQModifier {"n_grid":10} QuantizationModifier {"scheme":"W4A16"} )";
  EXPECT_EQ(separated("AWQModifier: {n_grid: 10}, QuantizationModifier: {scheme: W4A16}"), both);
}

TEST(SeparateScalingTest, ModulesWithoutASchemeAreRefused) {
  try {
    separated("AWQModifier: {ignore: [lm_head]}, QuantizationModifier: {scheme: Q4_K_M}");
    FAIL();
  } catch (const RecipeError& error) {
    const std::string text = error.what();
    EXPECT_NE(text.find("only rescales, so ignore has no meaning"), std::string::npos) << text;
  }
}

}  // namespace
}  // namespace layerpress::recipe
