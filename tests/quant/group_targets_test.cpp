#include "layerpress/quant/targets/group_targets.h"

#include <gtest/gtest.h>

#include "layerpress/base/error.h"

namespace layerpress::quant {
namespace {

using Groups = std::vector<GroupTargets::Group>;

const ModuleName kDown{"m.mlp.down_proj", {"Linear"}};

TEST(GroupTargetsTest, CompressedTensorsSortsPatternsAndVllmTakesTheFirst) {
  const GroupTargets targets(Groups{{{"re:.*mlp.*"}, "a"}, {{"re:.*down_proj"}, "b"}});
  EXPECT_EQ(targets.group_of(kDown), 1);
  EXPECT_EQ(targets.first_group_of(kDown), 0);
}

TEST(GroupTargetsTest, NamesBeatPatternsBeatClasses) {
  const GroupTargets targets(Groups{{{"Linear"}, "a"}, {{"re:.*down_proj"}, "b"}, {{"m.mlp.down_proj"}, "c"}});
  EXPECT_EQ(targets.group_of(kDown), 2);
  EXPECT_EQ(targets.group_of({"n.down_proj", {"Linear"}}), 1);
  EXPECT_EQ(targets.group_of({"n.up_proj", {"Linear"}}), 0);
  EXPECT_EQ(targets.first_group_of(kDown), 1);  // a name is no more than a pattern there
  EXPECT_EQ(targets.group_of({"norm", {"Norm"}}), -1);
  EXPECT_EQ(targets.first_group_of({"norm", {"Norm"}}), -1);
}

TEST(GroupTargetsTest, ATargetBelongsToTheLastGroupThatListsIt) {
  const GroupTargets targets(Groups{{{"re:.*mlp.*", "Linear"}, "a"}, {{"Linear"}, "b"}});
  EXPECT_EQ(targets.group_of({"n", {"Linear"}}), 1);
  EXPECT_EQ(targets.group_of(kDown), 0);
}

TEST(GroupTargetsTest, ABrokenPatternSaysWhose) {
  try {
    GroupTargets(Groups{{{"re:*"}, "recipe.yaml: x.group_1"}});
    FAIL();
  } catch (const RecipeError& error) {
    EXPECT_NE(std::string(error.what()).find("recipe.yaml: x.group_1.targets"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace layerpress::quant
