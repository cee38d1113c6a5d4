#include "layerpress/setup/recipe_notes.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "layerpress/setup/assignment/group_sizes.h"
#include "layerpress/setup/assignment/unmatched_entries.h"
#include "layerpress/setup/opening/tied_heads.h"
#include "tests/setup/small_model.h"

namespace layerpress::setup {
namespace {

using Names = std::vector<std::string>;

template <typename Function>
std::string recipe_error(Function&& function) {
  try {
    function();
  } catch (const RecipeError& error) {
    return error.what();
  }
  return "no error";
}

bool has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

Names assigned(const SmallRun& run) {
  Names names;
  for (const auto& [node, assignment] : run.setup.assignments.linears)
    names.push_back(run.setup.model.traced.graph.module_name(run.setup.model.traced.graph.nodes[node]));
  return names;
}

class RecipeNotesTest : public testing::Test {
 protected:
  Names notes_of(const OneshotOptions& options) {
    llama_.assign_by(options);
    return recipe_notes(options, llama_.setup);
  }

  std::string hint_for(const std::string& entry) {
    const OneshotOptions options = with_recipe({{"scheme", "W8A8"}, {"ignore", {entry}}});
    const std::vector<UnmatchedEntry> unmatched =
        unmatched_entries(llama_.setup.model, make_modifiers(recipe::recipe_of(options)));
    return unmatched.empty() ? "matched" : unmatched.front().hint;
  }

  SmallRun llama_{small_llama()};
};

TEST_F(RecipeNotesTest, EntriesThatMatchNothingHaveHints) {
  EXPECT_EQ(hint_for("lm_heed"), "did you mean lm_head?");
  EXPECT_EQ(hint_for("Liner"), "did you mean Linear?");
  EXPECT_EQ(hint_for("model.layers.0.self_attn.q_porj"), "did you mean model.layers.0.self_attn.q_proj?");
  EXPECT_EQ(hint_for("q_proj"), "names are full names; did you mean re:.*\\.q_proj$?");
  EXPECT_EQ(hint_for("down_porj"), "did you mean re:.*\\.down_proj$?");
  EXPECT_EQ(hint_for("model.layers.1"), "for the modules in it write re:model\\.layers\\.1\\..*");
  EXPECT_EQ(hint_for("re:q_proj$"), "patterns match from the start of a name; did you mean re:.*q_proj$?");
  EXPECT_EQ(hint_for("re:.*self_attn\\.q_porj$"), "no name has q_porj; did you mean q_proj?");
  EXPECT_EQ(hint_for("re:.*vision_tower.*"), "");
}

TEST_F(RecipeNotesTest, EntriesThatMatchHaveNone) {
  for (const char* entry :
       {"lm_head", "Linear", "re:.*gate_proj", "model.embed_tokens", "model.norm", "re:.*layernorm", ""})
    EXPECT_EQ(hint_for(entry), "matched") << entry;
}

TEST_F(RecipeNotesTest, OptionsAreNamedAsOptions) {
  OneshotOptions options;
  options.algorithm = "rtn";
  options.scheme = "W8A8";
  EXPECT_EQ(notes_of(options), Names{});
  options.ignore = {"lm_heed"};
  EXPECT_EQ(notes_of(options),
            (Names{"--ignore: lm_heed matches no module; did you mean lm_head?",
                   "--ignore replaces its default: lm_head is quantized, too, and gets a weight apart from the "
                   "embedding's; add lm_head to --ignore to leave it"}));
  options.ignore = {"re:.*lm_head", "re:.*down_proj"};
  EXPECT_EQ(notes_of(options), Names{});
}

TEST_F(RecipeNotesTest, StandardRecipeMayMatchNothing) {
  OneshotOptions options;
  options.scheme = "nvfp4-fp8";
  EXPECT_EQ(notes_of(options), Names{});
}

TEST_F(RecipeNotesTest, GroupsThatGetNothingAreNamedOnce) {
  const Json weights = {{"num_bits", 8}};
  const auto group = [&](const char* target) { return Json{{"targets", {target}}, {"weights", weights}}; };
  const Names notes = notes_of(
      with_recipe({{"ignore", {"lm_head"}},
                   {"config_groups", {{"a", group("Linear")}, {"b", group("re:.*v_porj")}, {"c", group("lm_head")}}}}));
  ASSERT_EQ(notes.size(), 2u);
  EXPECT_TRUE(has(notes[0], "group 'b' compresses nothing: its targets (re:.*v_porj) match no module; no name has"));
  EXPECT_TRUE(has(notes[1], "group 'c' compresses nothing: its targets (lm_head) match only modules that are ignored"));
}

TEST_F(RecipeNotesTest, NothingToDoSaysWhy) {
  const auto error = [&](const Json& arguments) {
    return recipe_error([&] { llama_.assign_by(with_recipe(arguments)); });
  };
  EXPECT_TRUE(has(error({{"scheme", "W8A8"}, {"targets", {"q_proj"}}}),
                  "match no module of LlamaForCausalLM; names are full names; did you mean re:.*\\.q_proj$?"));
  EXPECT_TRUE(
      has(error({{"scheme", "W8A8"}, {"ignore", {"Linear"}}}), "ignores (Linear) all modules that its targets match"));
}

TEST_F(RecipeNotesTest, GroupSizesThatDoNotDivide) {
  const auto error = [&](const OneshotOptions& options) {
    llama_.assign_by(options);
    return recipe_error(
        [&] { check_group_sizes(options, llama_.setup.model, llama_.setup.modifiers, llama_.setup.assignments); });
  };
  OneshotOptions options;
  options.algorithm = "rtn";
  EXPECT_EQ(error(options),
            "[recipe.check] W4A16 uses groups of 128, which do not divide 96 columns (12 linears, such as "
            "model.layers.0.self_attn.q_proj); add --group-size 32");
  options.group_size = 64;
  EXPECT_TRUE(has(error(options), "W4A16 with --group-size 64 uses groups of 64, which do not divide 96 columns"));
  EXPECT_TRUE(has(error(options), "; use --group-size 32"));
  options.group_size = 32;
  EXPECT_EQ(error(options), "no error");
  EXPECT_TRUE(has(error(with_recipe({{"scheme", "W4A16"}, {"ignore", {"lm_head"}}})),
                  "write config_groups whose weights have group_size 32"));
}

TEST(GroupSizes, NamesOtherSchemesWhereNoSizeFits) {
  Json config = small_llama();
  config["hidden_size"] = 88;
  SmallRun run(config);
  OneshotOptions options;
  options.algorithm = "rtn";
  for (const std::string scheme : {"W4A16", "NVFP4A16"}) {
    options.scheme = scheme;
    run.assign_by(options);
    const std::string error =
        recipe_error([&] { check_group_sizes(options, run.setup.model, run.setup.modifiers, run.setup.assignments); });
    EXPECT_TRUE(has(error, scheme + " uses groups of")) << error;
    EXPECT_TRUE(has(error, "leave out (--ignore) these linears, or use a scheme without groups")) << error;
  }
}

TEST_F(RecipeNotesTest, SharedWeightsInMemoryAreRefused) {
  const auto error = [&](const Json& ignore) {
    llama_.assign_by(with_recipe({{"scheme", "W8A8"}, {"ignore", ignore}}));
    return recipe_error([&] { require_own_weights(llama_.setup.model, llama_.setup.assignments); });
  };
  EXPECT_EQ(
      error(Json::array()),
      "[recipe.check] lm_head shares its weight with model.embed_tokens, and a module in memory cannot keep both; "
      "add ignore=[\"lm_head\"] or give it a weight of its own");
  EXPECT_EQ(error({"lm_head"}), "no error");
}

class RoutersTest : public testing::Test {
 protected:
  Names assigned_by(const Names& targets) {
    options_ = with_recipe({{"scheme", "W8A8"}, {"targets", targets}});
    run_.assign_by(options_);
    return assigned(run_);
  }

  bool are_assigned(const Names& targets, const Names& names) {
    const Names found = assigned_by(targets);
    return std::all_of(names.begin(), names.end(),
                       [&](const auto& name) { return std::find(found.begin(), found.end(), name) != found.end(); });
  }

  SmallRun run_{small_mixture()};
  OneshotOptions options_;
  const Names weighing_{"model.layers.0.mlp.gate", "model.layers.0.mlp.shared_expert_gate"};
};

TEST_F(RoutersTest, PatternsLeaveThem) {
  for (const std::string& name : assigned_by({"re:.*mlp.*"})) EXPECT_FALSE(name.ends_with("gate")) << name;
  const Names notes = recipe_notes(options_, run_.setup);
  ASSERT_EQ(notes.size(), 1u);
  EXPECT_TRUE(has(notes[0], "4 routers and gates stay as they are (model.layers.0.mlp.gate, ...) although patterns"));
  EXPECT_TRUE(has(notes[0], "class (Gate, Qwen2MoeTopKRouter)"));
  assigned_by({"Linear"});
  EXPECT_EQ(recipe_notes(options_, run_.setup), Names{});
}

TEST_F(RoutersTest, NamesAndClassesReachThem) {
  EXPECT_TRUE(are_assigned({"Linear", weighing_[0], weighing_[1]}, weighing_));
  EXPECT_TRUE(are_assigned({"Qwen2MoeTopKRouter", "Gate"}, weighing_));
  EXPECT_TRUE(are_assigned({"re:.*mlp.*", "Qwen2MoeTopKRouter"}, {weighing_[0]}));
  EXPECT_FALSE(are_assigned({"re:.*mlp.*", "Qwen2MoeTopKRouter"}, {weighing_[1]}));
}

}  // namespace
}  // namespace layerpress::setup
