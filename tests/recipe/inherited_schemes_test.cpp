#include "layerpress/recipe/inherited_schemes.h"

#include <gtest/gtest.h>

#include "layerpress/base/error.h"

namespace layerpress::recipe {
namespace {

/// Type and arguments of each modifier that a stage of groups ends with.
std::vector<std::string> resolved(const std::string& groups) {
  std::vector<std::string> lines;
  for (const ModifierEntry& entry :
       with_inherited_schemes(parse_recipe("x_stage: {" + groups + "}", "r.yaml")).modifiers)
    lines.push_back(entry.type + " " + entry.arguments.dump());
  return lines;
}

using Lines = std::vector<std::string>;

TEST(InheritedSchemesTest, GptqTakesOverWhatIsDescribedBefore) {
  EXPECT_EQ(resolved("a_modifiers: {QuantizationModifier: {scheme: W8A8, ignore: [lm_head]}, "
                     "GPTQModifier: {block_size: 64, actorder: static}}"),
            Lines{R"(GPTQModifier {"scheme":"W8A8","ignore":["lm_head"],"block_size":64,"actorder":null})"});
}

TEST(InheritedSchemesTest, DefaultsWrittenOutSayNothing) {
  EXPECT_EQ(
      resolved("a_modifiers: {QuantizationModifier: {scheme: W8A8}, GPTQModifier: {targets: [Linear], ignore: [], "
               "dampening_frac: 0.1, scheme: , kv_cache_scheme: }}"),
      Lines{R"(GPTQModifier {"scheme":"W8A8","dampening_frac":0.1,"actorder":null})"});
}

TEST(InheritedSchemesTest, SeveralModifiersBeforeAreAllTakenOver) {
  const Lines lines = resolved(
      "a_modifiers: {QuantizationModifier: {scheme: W8A8, targets: [a]}}, b_modifiers: {QuantizationModifier: "
      "{scheme: W4A16, targets: [b], weight_observer: mse}}, c_modifiers: {GPTQModifier: {weight_observer: gptq}}");
  EXPECT_EQ(lines,
            (Lines{R"(GPTQModifier {"scheme":"W8A8","targets":["a"],"weight_observer":"gptq","actorder":null})",
                   R"(GPTQModifier {"scheme":"W4A16","targets":["b"],"weight_observer":"mse","actorder":null})"}));
}

TEST(InheritedSchemesTest, TheSchemesOwnActivationOrderHolds) {
  const std::string group = "{targets: [Linear], weights: {num_bits: 4, strategy: channel, actorder: weight}}";
  const Lines lines =
      resolved("a_modifiers: {QuantizationModifier: {config_groups: {g: " + group + "}}, GPTQModifier: }");
  ASSERT_EQ(lines.size(), 1u);
  EXPECT_NE(lines[0].find(R"("actorder":"weight"}}},"actorder":"weight"})"), std::string::npos) << lines[0];
  EXPECT_THROW(resolved("a_modifiers: {QuantizationModifier: {config_groups: {g: " + group +
                        ", h: {targets: [x], weights: {num_bits: 8}}}}, GPTQModifier: }"),
               RecipeError);
}

TEST(InheritedSchemesTest, OthersStayAsTheyAre) {
  for (const char* groups :
       {"a_modifiers: {QuantizationModifier: {scheme: W8A8}, GPTQModifier: {targets: [x]}}",
        "a_modifiers: {QuantizationModifier: {scheme: W8A8}, GPTQModifier: {ignore: [x]}}",
        "a_modifiers: {QuantizationModifier: {scheme: W8A8}, GPTQModifier: {scheme: W4A16}}",
        "a_modifiers: {GPTQModifier: {}, QuantizationModifier: {scheme: W8A8}}", "a_modifiers: {GPTQModifier: {}}",
        "a_modifiers: {GPTQModifier: {scheme: W8A8}}, b_modifiers: {GPTQModifier: {}}"}) {
    Lines same;
    for (const ModifierEntry& entry : parse_recipe(std::string("x_stage: {") + groups + "}", "r").modifiers)
      same.push_back(entry.type + " " + entry.arguments.dump());
    EXPECT_EQ(resolved(groups), same) << groups;
  }
}

}  // namespace
}  // namespace layerpress::recipe
