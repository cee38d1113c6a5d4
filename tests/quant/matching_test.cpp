#include "layerpress/quant/targets/matching.h"

#include <gtest/gtest.h>

#include "layerpress/base/error.h"

namespace layerpress::quant {
namespace {

using Match = TargetList::Match;

Match match(const std::string& pattern, const std::string& name, std::vector<std::string> classes = {"Linear"}) {
  return TargetList({pattern}, "targets").match({name, std::move(classes)});
}

TEST(TargetListTest, MatchesNamesClassesAndPatterns) {
  EXPECT_EQ(match("model.q_proj", "model.q_proj"), Match::kName);
  EXPECT_EQ(match("q_proj", "model.q_proj"), Match::kNone);
  EXPECT_EQ(match("model", "model.q_proj"), Match::kNone);
  EXPECT_EQ(match("Linear", "model.q_proj"), Match::kClass);
  EXPECT_EQ(match("linear", "model.q_proj"), Match::kNone);
  EXPECT_EQ(match("Linear", "model.q_proj", {"LinearBase"}), Match::kClass);
  EXPECT_EQ(match("re:.*q_proj", "model.q_proj"), Match::kRegex);
}

TEST(TargetListTest, ModulesMayHaveOtherNames) {
  const ModuleName module{"text.head", {"Linear"}, {"model.head", "head"}};
  const auto match = [&](const std::string& pattern) { return TargetList({pattern}, "targets").match(module); };
  for (const char* name : {"text.head", "model.head", "head"}) EXPECT_EQ(match(name), Match::kName) << name;
  EXPECT_EQ(match("re:model"), Match::kRegex);
  EXPECT_EQ(match("re:text"), Match::kRegex);
  EXPECT_EQ(match("re:other"), Match::kNone);
  EXPECT_EQ(match("text"), Match::kNone);
  EXPECT_EQ(match("Linear"), Match::kClass);
}

TEST(TargetListTest, PatternsAreAnchoredAtTheStartOnly) {
  EXPECT_EQ(match("re:model", "model.q_proj"), Match::kRegex);
  EXPECT_EQ(match("re:q_proj", "model.q_proj"), Match::kNone);
  EXPECT_EQ(match("re:.*q_proj$", "model.q_proj.bias"), Match::kNone);
  EXPECT_EQ(match("re:zebra|.*q_proj", "model.q_proj"), Match::kRegex);
  EXPECT_EQ(match("re:zebra|q_proj", "model.q_proj"), Match::kNone);
  EXPECT_EQ(match("re:", "anything"), Match::kRegex);
  EXPECT_EQ(match(R"(re:.*layers\.(?P<n>[0-3])\.(?!mlp))", "model.layers.2.self_attn"), Match::kRegex);
  EXPECT_EQ(match(R"(re:.*layers\.(?P<n>[0-3])\.(?!mlp))", "model.layers.2.mlp"), Match::kNone);
}

TEST(TargetListTest, NameBeatsPatternBeatsClass) {
  const TargetList list({"Linear", "re:.*", "a"}, "targets");
  EXPECT_EQ(list.match({"a", {"Linear"}}), Match::kName);
  EXPECT_EQ(list.match({"b", {"Linear"}}), Match::kRegex);
  EXPECT_FALSE(TargetList({}, "targets").matches({"a", {"Linear"}}));
}

TEST(TargetListTest, RemembersWhatNeverMatched) {
  const TargetList list({"Linear", "re:.*vision", "lm_head"}, "ignore");
  EXPECT_EQ(list.unmatched().size(), 3u);
  list.match({"lm_head", {"Linear"}});
  EXPECT_EQ(list.unmatched(), std::vector<std::string>{"re:.*vision"});
}

TEST(TargetListTest, ABrokenPatternSaysWhereAndWhich) {
  try {
    TargetList({"Linear", "re:.*(q_proj"}, "recipe.yaml: ignore");
    FAIL();
  } catch (const RecipeError& error) {
    EXPECT_NE(std::string(error.what()).find("recipe.yaml: ignore"), std::string::npos) << error.what();
    EXPECT_NE(std::string(error.what()).find("re:.*(q_proj"), std::string::npos) << error.what();
  }
}

TEST(TargetListTest, APatternThatNeverEndsIsStopped) {
  const TargetList list({R"(re:(\w+\w+)+\d$)"}, "ignore");
  EXPECT_THROW(list.match({std::string(60, 'a') + "!", {}}), RecipeError);
  EXPECT_THROW(TargetList({"re:" + std::string(20'000, 'a')}, "ignore"), RecipeError);
}

}  // namespace
}  // namespace layerpress::quant
