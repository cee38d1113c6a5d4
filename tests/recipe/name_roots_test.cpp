#include "layerpress/recipe/name_roots.h"

#include <gtest/gtest.h>

#include "layerpress/quant/targets/matching.h"

namespace layerpress::recipe {
namespace {

using Names = std::vector<std::string>;

/// Two layers and a head.
std::set<std::string> others() {
  return {"model.embed_tokens",
          "model.layers.0.self_attn.q_proj",
          "model.layers.0.mlp.up_proj",
          "model.layers.1.self_attn.q_proj",
          "model.layers.1.mlp.up_proj",
          "model.norm",
          "lm_head"};
}

/// The entries, which must match exactly what they are for.
Names entries(const Names& modules) {
  Names found = ignore_entries(modules, others());
  const quant::TargetList list(found, "ignore");
  for (const std::string& name : modules) EXPECT_TRUE(list.matches({name, {}, {}})) << name;
  for (const std::string& name : others()) EXPECT_FALSE(list.matches({name, {}, {}})) << name;
  EXPECT_EQ(list.unmatched(), Names{});
  return found;
}

TEST(NameRoots, AreAsShortAsOtherNamesAllow) {
  const auto roots =
      name_roots({"mtp.fc", "model.layers.2.mlp.up_proj", "mtp.layers.0.q", "model.layers.1.mlp.extra"}, others());
  ASSERT_EQ(roots.size(), 3u);
  EXPECT_EQ(roots[0].root, "mtp");
  EXPECT_EQ(roots[0].names, (Names{"mtp.fc", "mtp.layers.0.q"}));
  EXPECT_EQ(roots[1].root, "model.layers.2");
  EXPECT_EQ(roots[2].root, "model.layers.1.mlp.extra");
}

TEST(IgnoreEntries, OnePatternForAPlace) {
  EXPECT_EQ(entries({"mtp.fc", "mtp.layers.0.self_attn.q_proj"}), Names{"re:^mtp.*"});
  EXPECT_EQ(entries({"model.layers.2.eh_proj", "model.layers.2.mlp.up_proj"}), Names{R"(re:^model\.layers\.2\..*)"});
  EXPECT_EQ(entries({"lm.fc", "lm.fd"}), Names{R"(re:^lm\..*)"});  // lm_head begins with it
  EXPECT_EQ(entries({}), Names{});
}

TEST(IgnoreEntries, PartsBesideTheLanguageModelMayLoseTheirWrapper) {
  const Names found = entries({"model.visual.blocks.0.attn.qkv", "model.visual.blocks.1.attn.qkv"});
  EXPECT_EQ(found, Names{R"(re:^(model\.)?visual\..*)"});
  EXPECT_TRUE(quant::TargetList(found, "ignore").matches({"visual.blocks.0.attn.qkv", {}, {}}));
}

TEST(IgnoreEntries, ModulesByNameAndAlikeOnesByNumber) {
  EXPECT_EQ(entries({"model.layers.1.mlp.extra"}), Names{"model.layers.1.mlp.extra"});
  EXPECT_EQ(entries({"model.layers.0.mlp.extra", "model.layers.1.mlp.extra"}),
            Names{R"(re:^model\.layers\.\d+\.mlp\.extra$)"});
  EXPECT_EQ(entries({"model.layers.0.add.a", "model.layers.1.add.b"}), Names{R"(re:^model\.layers\.\d+\.add\..*)"});
  // A pattern with any number would match layers of the model.
  EXPECT_EQ(entries({"model.layers.2.a", "model.layers.2.b", "model.layers.3.a"}),
            (Names{R"(re:^model\.layers\.2\..*)", R"(re:^model\.layers\.3\..*)"}));
}

TEST(IgnoreEntries, NamesAreNoExpressions) {
  EXPECT_EQ(entries({"a+(b.c", "a+(b.d"}), Names{R"(re:^a\+\(b.*)"});
  EXPECT_EQ(entries({"x..y", "x..z"}), Names{R"(re:^x.*)"});
}

}  // namespace
}  // namespace layerpress::recipe
