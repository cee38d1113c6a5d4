#include "layerpress/target/written_targets.h"

#include <gtest/gtest.h>

#include "layerpress/quant/targets/group_targets.h"

namespace layerpress::target {
namespace {

using Lists = std::vector<std::vector<std::string>>;

quant::QuantizationScheme scheme_with(std::vector<std::string> targets) {
  quant::QuantizationScheme scheme = quant::preset_scheme("W4A16");
  scheme.targets = std::move(targets);
  return scheme;
}

/// A head without a group, and two layers of three linears; `group_of` says each linear's group.
GroupedModules model(const std::function<int(const std::string&)>& group_of) {
  GroupedModules grouped;
  for (const char* layer : {"m.0.", "m.1."})
    for (const char* part : {"attn.q_proj", "mlp.up_proj", "mlp.down_proj"}) {
      grouped.modules.push_back({std::string(layer) + part, {"Linear"}});
      grouped.groups.push_back(group_of(grouped.modules.back().name));
    }
  grouped.modules.push_back({"lm_head", {"Linear"}});
  grouped.groups.push_back(-1);
  return grouped;
}

bool has(const std::string& name, const char* part) { return name.find(part) != std::string::npos; }

Lists written(const Lists& targets, const GroupedModules& grouped) {
  std::vector<quant::QuantizationScheme> schemes;
  for (const auto& list : targets) schemes.push_back(scheme_with(list));
  const quant::QuantizationConfig config = with_targets(schemes, grouped);
  EXPECT_EQ(config.ignore, std::vector<std::string>{"lm_head"});
  Lists result;
  for (const auto& [name, scheme] : config.groups) result.push_back(scheme.targets);
  return result;
}

TEST(WrittenTargetsTest, ClassesStayBesidePatterns) {
  const auto grouped = model([](const std::string& name) { return has(name, "down") ? 1 : 0; });
  EXPECT_EQ(written({{"Linear"}, {"re:.*down_proj"}}, grouped), (Lists{{"Linear"}, {"re:.*down_proj"}}));
}

TEST(WrittenTargetsTest, TheOrderSuitsReadersThatTakeTheFirst) {
  const auto grouped = model([](const std::string& name) { return has(name, "down") ? 2 : has(name, "mlp") ? 1 : 0; });
  EXPECT_EQ(written({{"re:.*attn.*"}, {"re:.*mlp.*"}, {"re:.*down_proj"}}, grouped),
            (Lists{{"re:.*attn.*"}, {"re:.*down_proj"}, {"re:.*mlp.*"}}));
}

TEST(WrittenTargetsTest, TransformersFindsTheGroupOfTheExperts) {
  GroupedModules grouped = model([](const std::string& name) { return has(name, "attn") ? 0 : 1; });
  for (const char* part : {"gate_proj", "down_proj"}) {
    grouped.modules.push_back({std::string("m.0.mlp.experts.3.") + part, {"Linear"}});
    grouped.groups.push_back(1);
  }
  const std::string mlp = "re:.*mlp.*", attention = "re:.*attn.*", experts = "re:.*[.]experts[.].*";
  EXPECT_EQ(written({{attention}, {mlp}}, grouped), (Lists{{mlp}, {attention}}));
  EXPECT_EQ(written({{"Linear"}, {mlp}}, grouped), (Lists{{"Linear"}, {mlp, experts}}));
  EXPECT_EQ(written({{attention}, {"Linear"}}, grouped), (Lists{{attention}, {"Linear"}}));
}

TEST(WrittenTargetsTest, NamesWhereTargetsSayTooLittle) {
  // Two modifiers that both name Linear and ignore the other's modules: one group must be named, the smaller one.
  const auto grouped = model([](const std::string& name) { return has(name, "attn") ? 1 : 0; });
  EXPECT_EQ(written({{"Linear"}, {"Linear"}}, grouped), (Lists{{"Linear"}, {"m.0.attn.q_proj", "m.1.attn.q_proj"}}));
}

TEST(WrittenTargetsTest, AModuleKnownByTwoNamesIsFoundByBoth) {
  GroupedModules grouped = model([](const std::string& name) { return has(name, "attn") ? 0 : 1; });
  const auto size = grouped.modules.size();
  for (std::size_t m = 0; m + 1 < size; ++m) {
    grouped.modules.push_back({"other." + grouped.modules[m].name, {"Linear"}});
    grouped.groups.push_back(grouped.groups[m]);
  }
  const Lists lists = written({{"re:m.*attn"}, {"Linear"}}, grouped);
  ASSERT_EQ(lists.size(), 2u);
  EXPECT_EQ(lists[0].size(), 4u);  // the pattern misses the other names
  EXPECT_EQ(lists[1], std::vector<std::string>{"Linear"});
}

TEST(WrittenTargetsTest, GptOssIsUnderstoodAsVllmRenamesIt) {
  GroupedModules grouped{.modules = {}, .groups = {}, .gpt_oss = true};
  for (const char* name :
       {"m.0.self_attn.q_proj", "m.0.mlp.experts.3.down_proj", "m.0.mlp.experts.3.up_proj", "lm_head"}) {
    grouped.modules.push_back({name, {"Linear"}});
    grouped.groups.push_back(has(name, "attn") ? 0 : -1);
  }
  const auto config_for = [&](const char* target) { return with_targets({scheme_with({target})}, grouped); };
  EXPECT_EQ(config_for("re:.*self_attn.*").groups[0].second.targets, std::vector<std::string>{"m.0.self_attn.q_proj"});
  for (const char* kept : {"Linear", "re:.*q_proj"})
    EXPECT_EQ(config_for(kept).groups[0].second.targets, std::vector<std::string>{kept});
  EXPECT_EQ(config_for("Linear").ignore, (std::vector<std::string>{"lm_head", "re:.*[.]experts[.].*"}));
  grouped.gpt_oss = false;
  EXPECT_EQ(config_for("re:.*self_attn.*").groups[0].second.targets, std::vector<std::string>{"re:.*self_attn.*"});
  EXPECT_EQ(config_for("Linear").ignore.size(), 3U);
}

TEST(WrittenTargetsTest, ManyGroupsSortAsTheyAreNumbered) {
  GroupedModules grouped;
  Lists targets;
  for (int i = 0; i < 12; ++i) {
    grouped.modules.push_back({fmt::format("m.{}.up", i), {"Linear"}});
    grouped.groups.push_back(i);
    targets.push_back({fmt::format("re:m\\.{}\\.", i)});
  }
  std::vector<quant::QuantizationScheme> schemes;
  for (const auto& list : targets) schemes.push_back(scheme_with(list));
  const auto config = with_targets(schemes, grouped);
  EXPECT_EQ(config.groups.front().first, "group_00");
  EXPECT_EQ(config.groups.back().first, "group_11");
  EXPECT_EQ(config.groups.back().second.targets, targets.back());
}

/// What with_targets writes for these schemes.
Lists written_for(const std::vector<quant::QuantizationScheme>& schemes, const GroupedModules& grouped) {
  Lists result;
  for (const auto& [name, scheme] : with_targets(schemes, grouped).groups) result.push_back(scheme.targets);
  return result;
}

TEST(WrittenTargetsTest, VllmFindsTheHead) {
  GroupedModules grouped = model([](const std::string&) { return 0; });
  grouped.groups.back() = 0;
  grouped.head = {"lm_head", "language_model.lm_head"};
  EXPECT_EQ(written_for({scheme_with({"Linear"})}, grouped), (Lists{{"Linear", "re:.*lm_head$"}}));
  EXPECT_EQ(written_for({scheme_with({"Linear", "re:.*head"})}, grouped), (Lists{{"Linear", "re:.*head"}}));
  grouped.groups.back() = 1;
  EXPECT_EQ(written_for({scheme_with({"Linear"}), scheme_with({"lm_head"})}, grouped),
            (Lists{{"Linear"}, {"lm_head", "re:.*lm_head$"}}));
  grouped.groups.back() = -1;
  EXPECT_EQ(written_for({scheme_with({"Linear"})}, grouped), Lists{{"Linear"}});
}

TEST(WrittenTargetsTest, VllmFindsEmbeddingsWithoutNames) {
  GroupedModules grouped = model([](const std::string&) { return 0; });
  grouped.modules.push_back({"model.embed_tokens", {"Embedding"}});
  grouped.groups.push_back(1);
  const std::vector schemes{scheme_with({"Linear"}), scheme_with({"re:.*embed_tokens"})};
  EXPECT_EQ(written_for(schemes, grouped), (Lists{{"Linear"}, {"re:.*embed_tokens", "Embedding"}}));
  grouped.is_whole = false;
  EXPECT_EQ(written_for(schemes, grouped), (Lists{{"Linear"}, {"re:.*embed_tokens"}}));
  grouped.is_whole = true;
  grouped.modules.push_back({"model.embed_positions", {"Embedding"}});
  grouped.groups.push_back(-1);
  EXPECT_EQ(written_for(schemes, grouped), (Lists{{"Linear"}, {"re:.*embed_tokens"}}));
}

TEST(WrittenTargetsTest, AttentionsAreGroupsByClass) {
  GroupedModules grouped = model([](const std::string&) { return 0; });
  for (const char* name : {"m.0.attn", "m.1.attn"}) {
    grouped.modules.push_back({name, {name[2] == '0' ? "AAttention" : "BAttention"}});
    grouped.groups.push_back(1);
  }
  quant::QuantizationScheme attention = scheme_with({"re:.*attn$"});
  attention.weights.reset();
  EXPECT_EQ(written_for({scheme_with({"Linear"}), attention}, grouped),
            (Lists{{"Linear"}, {"AAttention"}, {"BAttention"}}));
  grouped.groups.back() = -1;  // a class of its own, so the first may still be named by its
  EXPECT_EQ(written_for({scheme_with({"Linear"}), attention}, grouped), (Lists{{"Linear"}, {"AAttention"}}));
  grouped.modules.back().classes = {"AAttention"};
  EXPECT_EQ(written_for({scheme_with({"Linear"}), attention}, grouped), (Lists{{"Linear"}, {"re:.*attn$"}}));
  attention.targets = {"m.0.attn", "re:.*0.attn$"};
  EXPECT_EQ(written_for({scheme_with({"Linear"}), attention}, grouped), (Lists{{"Linear"}, attention.targets}));
}

}  // namespace
}  // namespace layerpress::target
