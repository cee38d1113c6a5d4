#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "layerpress/base/error.h"
#include "layerpress/recipe/recipe.h"
#include "layerpress/recipe/yaml_to_json.h"

namespace layerpress::recipe {
namespace {

Recipe parse(const std::string& text) { return parse_recipe(text, "recipe.yaml"); }

template <typename Function>
void expect_recipe_error(Function&& function, const std::vector<std::string>& parts) {
  try {
    function();
    ADD_FAILURE() << "accepted; expected an error about " << parts.front();
  } catch (const RecipeError& error) {
    const std::string message = error.what();
    for (const std::string& part : parts)
      EXPECT_NE(message.find(part), std::string::npos) << "'" << part << "' not in: " << message;
    EXPECT_EQ(message.find('\n'), std::string::npos) << message;
  }
}

void expect_refused(const std::string& text, std::vector<std::string> parts) {
  parts.emplace_back("recipe.yaml");
  expect_recipe_error([&] { parse(text); }, parts);
}

Json value_of(const std::string& scalar) { return Json(yaml_to_json("x: " + scalar, "test"))["x"]; }

const char* const kTwoModifiers = R"(
quant_stage:                 # any name
  quant_modifiers:
    SmoothQuantModifier:
      smoothing_strength: 0.8
      mappings: [[["re:.*q_proj", "re:.*k_proj", "re:.*v_proj"], "re:.*input_layernorm"]]
    GPTQModifier: {scheme: W8A8, targets: Linear, ignore: [lm_head]}
)";

const char* const kConfigGroups = R"(
s_stage:
  m_modifiers:
    AWQModifier: {duo_scaling: both, mappings: [{smooth_layer: "re:.*input_layernorm$", balance_layers: ["re:.*q_proj$"]}]}
    QuantizationModifier:
      ignore: ["lm_head", "re:.*mlp.gate$"]
      config_groups:
        group_0: {targets: ["Linear"], weights: {num_bits: 4, type: int, symmetric: true, strategy: group, group_size: 128, observer: mse}}
)";

const char* const kPresets = R"(
s_stage:
  m_modifiers:
    QuantizationModifier:
      scheme: {"FP8_BLOCK": ["re:.*self_attn.*_proj$"], "NVFP4": ["re:.*mlp.*_proj$"]}
      kv_cache_scheme: {num_bits: 8, type: float, strategy: tensor, dynamic: false, symmetric: true}
)";

TEST(RecipeParseTest, ModifiersOfOneStage) {
  const Recipe recipe = parse(kTwoModifiers);
  ASSERT_EQ(recipe.modifiers.size(), 2u);
  EXPECT_EQ(recipe.modifiers[0].type, "SmoothQuantModifier");
  EXPECT_EQ(recipe.modifiers[0].arguments["smoothing_strength"], 0.8);
  EXPECT_EQ(recipe.modifiers[0].arguments["mappings"][0][1], "re:.*input_layernorm");
  EXPECT_EQ(Json(recipe.modifiers[1].arguments),
            Json::parse(R"({"scheme":"W8A8","targets":"Linear","ignore":["lm_head"]})"));
  EXPECT_EQ(recipe.modifiers[1].where, "recipe.yaml: quant_stage.quant_modifiers.GPTQModifier");
}

TEST(RecipeParseTest, ConfigGroupsAndPresets) {
  const Json weights = parse(kConfigGroups).modifiers.at(1).arguments["config_groups"]["group_0"]["weights"];
  EXPECT_EQ(
      weights,
      Json::parse(
          R"({"num_bits":4,"type":"int","symmetric":true,"strategy":"group","group_size":128,"observer":"mse"})"));
  const Json arguments = parse(kPresets).modifiers.at(0).arguments;
  EXPECT_EQ(arguments["scheme"]["NVFP4"][0], "re:.*mlp.*_proj$");
  EXPECT_EQ(arguments["kv_cache_scheme"]["dynamic"], false);
}

TEST(RecipeParseTest, StagesAndGroupsRunInFileOrder) {
  const Recipe recipe = parse(R"(
z_stage: {b_modifiers: {GPTQModifier: {scheme: W4A16}}, a_modifiers: {GPTQModifier: {scheme: W8A8}}}
a_stage: {x_modifiers: {QuantizationModifier:}}
args: {}
)");
  ASSERT_EQ(recipe.modifiers.size(), 3u);
  EXPECT_EQ(recipe.modifiers[0].arguments["scheme"], "W4A16");
  EXPECT_EQ(recipe.modifiers[1].arguments["scheme"], "W8A8");
  EXPECT_EQ(recipe.modifiers[2].arguments, OrderedJson::object());
}

TEST(RecipeParseTest, ArgumentsKeepTheOrderOfTheFile) {
  const Recipe recipe = parse(
      "a_stage: {m_modifiers: {GPTQModifier: {targets: [x], config_groups: {z: {targets: [a]}, b: {targets: [c]}}, "
      "ignore: []}}}");
  EXPECT_EQ(recipe.modifiers.at(0).arguments.dump(),
            R"({"targets":["x"],"config_groups":{"z":{"targets":["a"]},"b":{"targets":["c"]}},"ignore":[]})");
  EXPECT_EQ(parse(to_yaml(recipe)).modifiers.at(0).arguments.dump(), recipe.modifiers.at(0).arguments.dump());
}

TEST(RecipeParseTest, WordsThatWereWrittenAsPythonObjects) {
  const std::string library = "!!python/object/apply:compressed_tensors.quantization.quant_args.";
  EXPECT_EQ(value_of(library + "ActivationOrdering [static]"), "static");
  EXPECT_EQ(value_of(library + "ActivationOrdering\n - weight"), "weight");
  for (const std::string& hostile :
       {library + "ActivationOrdering [static, weight]", library + "ActivationOrdering [[static]]",
        library + "ActivationOrdering static", library + "QuantizationArgs [static]",
        std::string("!!python/object/apply:os.system [static]")})
    expect_recipe_error([&] { value_of(hostile); }, {"unknown tag"});
}

TEST(RecipeParseTest, TuplesAreLists) {
  EXPECT_EQ(value_of("!!python/tuple\n - [a, b]\n - c"), Json::parse(R"([["a", "b"], "c"])"));
  for (const char* hostile : {"!!python/tuple {a: b}", "!!python/tuple a", "!!python/list [a]"})
    expect_recipe_error([&] { value_of(hostile); }, {"unknown tag"});
}

TEST(RecipeParseTest, JsonIsYaml) {
  const Recipe recipe = parse(
      "{\"q_stage\":{\"q_modifiers\":{\n\t\"GPTQModifier\":{\"dampening_frac\":1e-2,\"ignore\":[],\"a\\/"
      "b\":\"\\u00e9\"}}}}");
  EXPECT_EQ(Json(recipe.modifiers.at(0).arguments),
            Json::parse(R"({"dampening_frac":0.01,"ignore":[],"a/b":"\u00e9"})"));
}

TEST(RecipeParseTest, ShapesThatWouldDoNothingAreRefused) {
  expect_refused("m_modifiers: {GPTQModifier: {}}", {"m_modifiers", "quant_stage:"});
  expect_refused("QuantizationModifier: {scheme: W4A16}", {"QuantizationModifier", "quant_stage:"});
  expect_refused("- GPTQModifier: {}", {"a list", "quant_stage:"});
  expect_refused("s_stage: [{GPTQModifier: {}}]", {"s_stage", "a list", "quant_modifiers:"});
  expect_refused("s_stage: {m_modifiers: [{GPTQModifier: {}}]}", {"s_stage.m_modifiers", "a list", "without a dash"});
  expect_refused("s_stage: {GPTQModifier: {}}", {"s_stage", "GPTQModifier", "quant_modifiers:"});
  expect_refused("s_stage: {m_modifiers: {}}", {"no modifier"});
  expect_refused("s_stage: {}", {"no modifier"});
  expect_refused("args: {}", {"no modifier"});
  expect_refused("s_stage:", {"s_stage", "nothing"});
  expect_refused("s_stage: {m_modifiers: }", {"s_stage.m_modifiers", "nothing"});
}

TEST(RecipeParseTest, NamesMustEndRight) {
  expect_refused("quant: {m_modifiers: {GPTQModifier: {}}}", {"'quant'", "_stage"});
  expect_refused("quant_stage_0: {m_modifiers: {GPTQModifier: {}}}", {"'quant_stage_0'", "_stage"});
  expect_refused("quant_stage: {modifiers: {GPTQModifier: {}}}", {"'modifiers'", "_modifiers"});
  expect_refused("quant_stage: {run_type: train}", {"'run_type'", "_modifiers"});
  EXPECT_EQ(
      parse_recipe("quant_stage: {run_type: oneshot, m_modifiers: {GPTQModifier: {}}}", "r.yaml").modifiers.size(), 1u);
  expect_refused("args: {bits: 4}\ns_stage: {m_modifiers: {GPTQModifier: {}}}", {"args"});
  expect_refused("s_stage: {m_modifiers: {GPTQModifier: W4A16}}", {"GPTQModifier", "'W4A16'"});
  expect_refused("s_stage: {m_modifiers: {GPTQModifier: [1]}}", {"GPTQModifier", "a list"});
}

TEST(RecipeParseTest, WhatIsNoRecipe) {
  expect_refused("", {"empty"});
  expect_refused("# only a comment\n", {"empty"});
  expect_refused("path/to/recipe.yaml", {"path/to/recipe.yaml", "mapping"});
  expect_refused("a_stage:\n  m_modifiers:\n   x: [1, 2\n", {"line"});
  expect_refused("a_stage: {}\n---\nb_stage: {}\n", {"line 3", "second document"});
  expect_refused("{\"a_stage\": {}}\n}", {"line 2", "flow end"});
}

TEST(RecipeParseTest, YamlMistakesComeWithTheLine) {
  expect_refused("a_stage:\n  m_modifiers:\n    GPTQModifier:\n      scheme: W4A16\n      scheme: W8A8\n",
                 {"line 5", "'scheme'", "twice"});
  expect_refused("a_stage:\n\tm_modifiers: 3\n", {"line 2"});
  expect_refused("a_stage:\n  b: \"open\n", {"line"});
  expect_refused("a_stage:\n  b: \"open", {"line"});
  expect_refused("a_stage: {x: *nobody}\n", {"line 1"});
  expect_refused("a_stage:\n  x: !!python/object:os.system []\n", {"line 2", "tag"});
  expect_refused("a_stage:\n  x: !secret 3\n", {"line 2", "tag"});
  expect_refused("a_stage:\n  ? [a, b]\n  : 3\n", {"line 2", "key"});
  expect_refused("a_stage:\n  x: .nan\n", {"line 2", "finite"});
  expect_refused("a_stage:\n  x: 99999999999999999999\n", {"line 2", "64 bits"});
}

TEST(RecipeParseTest, HostileSizesAreRefused) {
  std::string bomb = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n";
  for (int i = 1; i < 12; ++i)
    bomb +=
        fmt::format("a{0}: &a{0} [*a{1}, *a{1}, *a{1}, *a{1}, *a{1}, *a{1}, *a{1}, *a{1}, *a{1}, *a{1}]\n", i, i - 1);
  expect_refused(bomb, {"line", "aliases"});
  expect_refused("a: " + std::string(60, '[') + std::string(60, ']'), {"line 1", "nested"});
  expect_refused("a: " + std::string(100'000, '['), {"line", "nested"});
  expect_refused("a: &a [*a]\n", {"line 1", "nested"});
}

TEST(RecipeParseTest, ScalarsFollowYamlOneOne) {
  for (const char* text : {"true", "True", "TRUE", "yes", "Yes", "on", "ON"}) EXPECT_EQ(value_of(text), true) << text;
  for (const char* text : {"false", "no", "No", "off", "OFF"}) EXPECT_EQ(value_of(text), false) << text;
  for (const char* text : {"", "~", "null", "Null", "NULL"}) EXPECT_TRUE(value_of(text).is_null()) << text;
  for (const char* text :
       {"y", "nULL", "tRue", "1.2.3", "1e", "e5", ".", "_1", "0x", "0b2", "09", "12:30", "2024-01-01", "+-1"})
    EXPECT_EQ(value_of(text), std::string(text)) << text;
  const std::vector<std::pair<const char*, int>> integers{{"0", 0},     {"-7", -7},   {"+12", 12},    {"010", 8},
                                                          {"0x1F", 31}, {"0b101", 5}, {"1_000", 1000}};
  for (const auto& [text, number] : integers) {
    EXPECT_EQ(value_of(text), number) << text;
    EXPECT_TRUE(value_of(text).is_number_integer()) << text;
  }
  const std::vector<std::pair<const char*, double>> floats{
      {"0.5", 0.5}, {"-.5", -0.5}, {"3.", 3.0}, {"1e-3", 1e-3}, {"1.5e+2", 150.0}};
  for (const auto& [text, number] : floats) {
    EXPECT_EQ(value_of(text), number) << text;
    EXPECT_TRUE(value_of(text).is_number_float()) << text;
  }
  for (const char* text : {"'yes'", "\"yes\"", "!!str yes"}) EXPECT_EQ(value_of(text), "yes") << text;
  EXPECT_EQ(value_of("\"4\""), "4");
  EXPECT_EQ(value_of("W4A16 # comment"), "W4A16");
}

TEST(RecipeParseTest, DocumentMarkersAreAllowed) {
  const std::string body = "s_stage: {m_modifiers: {GPTQModifier: {}}}\n";
  for (const std::string& text : {"---\n" + body, body + "...\n", "%YAML 1.1\n---\n" + body + "...", body + "---\n"})
    EXPECT_EQ(parse(text).modifiers.size(), 1u) << text;
}

TEST(RecipeParseTest, AnchorsAndMerges) {
  const Recipe recipe = parse(R"(
s_stage:
  a_modifiers:
    GPTQModifier: &base {scheme: W4A16, ignore: [lm_head], block_size: 128}
  b_modifiers:
    GPTQModifier:
      <<: *base
      scheme: W8A8
)");
  EXPECT_EQ(Json(recipe.modifiers.at(1).arguments),
            Json::parse(R"({"scheme":"W8A8","ignore":["lm_head"],"block_size":128})"));
  expect_refused("a_stage:\n  <<: 3\n", {"line 2", "merges"});
}

class RecipeFileTest : public testing::Test {
 protected:
  RecipeFileTest() : folder_(std::filesystem::path(testing::TempDir()) / fmt::format("recipe_file_{}", ::getpid())) {
    std::filesystem::create_directories(folder_);
  }
  ~RecipeFileTest() override { std::filesystem::remove_all(folder_); }

  std::filesystem::path write(const std::string& name, const std::string& text) const {
    std::ofstream(folder_ / name) << text;
    return folder_ / name;
  }

  std::filesystem::path folder_;
};

TEST_F(RecipeFileTest, YamlJsonAndMarkdown) {
  EXPECT_EQ(read_recipe_file(write("a.yaml", kTwoModifiers)).modifiers.size(), 2u);
  EXPECT_EQ(read_recipe_file(write("a.json", R"({"s_stage": {"m_modifiers": {"GPTQModifier": {}}}})")).modifiers.size(),
            1u);
  const std::string card = fmt::format("---\n{}---\n# A recipe\n\nText: with colons\n", kConfigGroups);
  EXPECT_EQ(read_recipe_file(write("a.md", card)).modifiers.size(), 2u);
}

TEST_F(RecipeFileTest, MessagesNameTheFileAndTheLine) {
  expect_recipe_error([&] { read_recipe_file(write("b.md", "\n---\ns_stage:\n  x: 1\n  x: 2\n---\n")); },
                      {"b.md", "line 5"});
  expect_recipe_error([&] { read_recipe_file(write("c.md", "# no front matter\n")); }, {"c.md", "---"});
  expect_recipe_error([&] { read_recipe_file(write("d.md", "---\ns_stage:\n")); }, {"d.md", "---"});
  expect_recipe_error([&] { read_recipe_file(folder_ / "missing.yaml"); }, {"missing.yaml", "no such file"});
  expect_recipe_error([&] { read_recipe_file(folder_); }, {folder_.filename().string(), "is a directory"});
  expect_recipe_error([&] { read_recipe_file("/dev/null"); }, {"/dev/null", "not a regular file"});
}

void expect_round_trip(const Recipe& recipe) {
  const std::string text = to_yaml(recipe);
  const Recipe again = parse(text);
  ASSERT_EQ(again.modifiers.size(), recipe.modifiers.size()) << text;
  for (std::size_t i = 0; i < recipe.modifiers.size(); ++i) {
    EXPECT_EQ(again.modifiers[i].type, recipe.modifiers[i].type) << text;
    EXPECT_EQ(again.modifiers[i].arguments.dump(), recipe.modifiers[i].arguments.dump()) << text;
  }
  EXPECT_EQ(to_yaml(again), text);
}

TEST(RecipeTextTest, WrittenRecipesReadBackTheSame) {
  for (const char* text : {kTwoModifiers, kConfigGroups, kPresets}) expect_round_trip(parse(text));
}

TEST(RecipeTextTest, OddValuesReadBackTheSame) {
  Recipe recipe;
  recipe.modifiers.push_back({"GPTQModifier",
                              Json::parse(R"({"none": null, "yes": "yes", "4": "0x10", "small": 1e-07, "large": 1e30,
      "text": "a: b # c\n\"q\" \\ \t\u007f\u0085\u0090\u00e9 '", "empty": {}, "nothing": [], "deep": {"list": [[1], {"a b": [true]}]},
      "integer": 9007199254740993, "negative": -0.5, "": "empty key"})"),
                              ""});
  recipe.modifiers.push_back({"GPTQModifier", Json::object(), ""});
  recipe.modifiers.push_back({"QuantizationModifier", Json{{"scheme", "FP8"}}, ""});
  recipe.modifiers.push_back({"GPTQModifier", Json{{"scheme", "W8A8"}}, ""});
  expect_round_trip(recipe);
}

TEST(RecipeTextTest, LooksAsExpected) {
  EXPECT_EQ(to_yaml(parse(
                "s_stage: {m_modifiers: {GPTQModifier: {scheme: W4A16, ignore: [lm_head], dampening_frac: 1e-7}}}")),
            "default_stage:\n"
            "  default_modifiers:\n"
            "    GPTQModifier:\n"
            "      scheme: \"W4A16\"\n"
            "      ignore: [\"lm_head\"]\n"
            "      dampening_frac: 1.0e-07\n");
}

}  // namespace
}  // namespace layerpress::recipe
