#include "layerpress/quant/scheme.h"

#include <gtest/gtest.h>

#include <functional>
#include <set>

namespace layerpress::quant {
namespace {

QuantizationArgs parse(const std::string& text) { return parse_quantization_args(Json::parse(text), "recipe"); }

void expect_contains(const std::string& text, const std::vector<std::string>& parts) {
  for (const std::string& part : parts)
    EXPECT_NE(text.find(part), std::string::npos) << "'" << part << "' not in: " << text;
}

template <typename Function>
void expect_recipe_error(Function&& function, const std::vector<std::string>& parts) {
  try {
    function();
    ADD_FAILURE() << "accepted; expected an error about " << parts.front();
  } catch (const RecipeError& error) {
    expect_contains(error.what(), parts);
    EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos);
  }
}

TEST(QuantizationArgsTest, DefaultsAndInferredStrategy) {
  EXPECT_EQ(parse("{}"), QuantizationArgs{});
  EXPECT_EQ(parse("{}").strategy, Strategy::kTensor);
  EXPECT_EQ(parse(R"({"group_size":64})").strategy, Strategy::kGroup);
  EXPECT_EQ(parse(R"({"group_size":-1})").strategy, Strategy::kChannel);
  EXPECT_EQ(parse(R"({"group_size":null,"strategy":null})").strategy, Strategy::kTensor);
}

TEST(QuantizationArgsTest, ToleratesWhatTheLibraryTolerates) {
  EXPECT_EQ(parse(R"({"type":"FLOAT","strategy":"Channel"})").type, NumberType::kFloat);
  const std::array<std::int64_t, 2> block{128, 64};
  EXPECT_EQ(parse(R"({"type":"float","strategy":"block","block_structure":"128x64"})").block_structure, block);
  EXPECT_EQ(parse(R"({"type":"float","strategy":"block","block_structure":[128,64]})").block_structure, block);
  EXPECT_EQ(parse(R"({"scale_dtype":"uint8"})").scale_dtype, "torch.uint8");
  EXPECT_EQ(parse(R"({"actorder":false})").actorder, std::nullopt);
  EXPECT_EQ(parse(R"({"actorder":"weight","group_size":128})").actorder, "weight");
  EXPECT_EQ(parse(R"({"symmetric":false})").zp_dtype, "torch.int8");
  EXPECT_EQ(parse(R"({"zp_dtype":"torch.int8"})").zp_dtype, std::nullopt);
}

TEST(QuantizationArgsTest, JsonRoundTripHasTheTwelveKeys) {
  for (const std::string& name : preset_names())
    for (const auto& args : {preset_scheme(name).weights, preset_scheme(name).input_activations}) {
      if (!args) continue;
      const Json object = to_json(*args);
      EXPECT_EQ(object.size(), 12u);
      EXPECT_EQ(parse_quantization_args(object, name), *args) << name;
    }
}

TEST(QuantizationArgsTest, RefusesWithTheKeyAndWhere) {
  const auto refused = [](const std::string& text, const std::string& key) {
    expect_recipe_error([&] { parse(text); }, {key, "recipe"});
  };
  refused(R"({"num_bits":0})", "num_bits");
  refused(R"({"num_bits":17})", "num_bits");
  refused(R"({"num_bits":99999999999999999999})", "num_bits");
  refused(R"({"num_bits":"4"})", "num_bits");
  refused(R"({"num_bits":4.5})", "num_bits");
  refused(R"({"num_bits":null})", "num_bits");
  refused(R"({"num_bits":6,"type":"float"})", "num_bits");
  refused(R"({"type":"complex"})", "type");
  refused(R"({"symmetric":"yes"})", "symmetric");
  refused(R"({"group_size":0})", "group_size");
  refused(R"({"group_size":-2})", "group_size");
  refused(R"({"group_size":1e3})", "group_size");
  refused(R"({"strategy":"group"})", "group_size");
  refused(R"({"strategy":"channel","group_size":64})", "group_size");
  refused(R"({"strategy":"block"})", "block_structure");
  refused(R"({"block_structure":[128,128]})", "block_structure");
  refused(R"({"strategy":"block","block_structure":[128]})", "block_structure");
  refused(R"({"strategy":"block","block_structure":[128,0]})", "block_structure");
  refused(R"({"strategy":"block","block_structure":"128"})", "block_structure");
  refused(R"({"strategy":"block","block_structure":"1]x[2"})", "block_structure");
  refused(R"({"strategy":"token"})", "dynamic");
  refused(R"({"strategy":"channel","dynamic":true})", "dynamic");
  refused(R"({"dynamic":"local"})", "dynamic");
  refused(R"({"dynamic":"true"})", "dynamic");
  refused(R"({"actorder":"group"})", "actorder");
  refused(R"({"actorder":true})", "actorder");
  refused(R"({"scale_dtype":"torch.nothing"})", "scale_dtype");
  refused(R"({"observer_kwargs":[]})", "observer_kwargs");
  refused(R"([])", "mapping");
}

TEST(QuantizationArgsTest, AnUnknownKeyNamesTheNearest) {
  expect_recipe_error([] { parse(R"({"num_bit":4})"); }, {"num_bit", "did you mean num_bits?"});
}

TEST(QuantizationSchemeTest, ParsesAGroup) {
  const Json object = Json::parse(
      R"({"targets":["Linear"],"weights":{"num_bits":4,"group_size":64},"input_activations":null,"format":"pack-quantized"})");
  const QuantizationScheme scheme = parse_quantization_scheme(object, "recipe");
  EXPECT_EQ(scheme.targets, std::vector<std::string>{"Linear"});
  EXPECT_EQ(scheme.weights->group_size, 64);
  EXPECT_FALSE(scheme.input_activations);
  EXPECT_EQ(scheme.format, "pack-quantized");
}

TEST(QuantizationSchemeTest, RefusesOddGroups) {
  const auto refused = [](const std::string& text, const std::vector<std::string>& parts) {
    expect_recipe_error([&] { parse_quantization_scheme(Json::parse(text), "recipe.config_groups.group_0"); }, parts);
  };
  refused(R"(["Linear"])", {"config_groups.group_0", "scheme: {"});
  refused(R"("W4A16")", {"config_groups.group_0"});
  refused(R"({"scheme":"W4A16","targets":["Linear"]})", {"config_groups.group_0", "scheme"});
  refused(R"({"weights":{}})", {"targets"});
  refused(R"({"targets":"Linear"})", {"targets"});
  refused(R"({"targets":[3]})", {"targets"});
  refused(R"({"targets":[],"weight":{}})", {"did you mean weights?"});
  refused(R"({"targets":[],"format":"mixed-precision"})", {"format", "mixed-precision"});
  refused(R"({"targets":[],"weights":{"num_bits":0}})", {"group_0.weights", "num_bits"});
  refused(R"({"targets":[],"input_activations":{"strategy":"channel"}})", {"group_0.input_activations", "channel"});
  refused(R"({"targets":[],"input_activations":{"actorder":"static"}})", {"group_0.input_activations", "actorder"});
}

TEST(PresetTest, KnowsEveryPresetOnce) {
  const std::vector<std::string> names = preset_names();
  EXPECT_EQ(std::set<std::string>(names.begin(), names.end()).size(), names.size());
  const std::set<std::string> expected{"UNQUANTIZED", "W4A16_ASYM", "W8A8",     "INT8",  "W4AFP8",   "FP8",
                                       "FP8_DYNAMIC", "FP8_BLOCK",  "NVFP4A16", "NVFP4", "MXFP4A16", "MXFP4",
                                       "MXFP8A16",    "MXFP8",      "W2A4",     "W2A8",  "W2A16",    "W3A4",
                                       "W3A8",        "W3A16",      "W4A4",     "W4A8",  "W4A16",    "W5A8",
                                       "W5A16",       "W6A8",       "W6A16",    "W7A8",  "W7A16",    "W8A16"};
  EXPECT_EQ(std::set<std::string>(names.begin(), names.end()), expected);
}

TEST(PresetTest, SpotChecks) {
  const QuantizationScheme asymmetric = preset_scheme("w4a16_asym");
  EXPECT_FALSE(asymmetric.weights->symmetric);
  EXPECT_EQ(asymmetric.weights->group_size, 128);
  EXPECT_EQ(asymmetric.weights->minimum_code(), -8);
  EXPECT_EQ(asymmetric.weights->maximum_code(), 7);
  EXPECT_EQ(preset_scheme("INT8"), preset_scheme("W8A8"));
  EXPECT_EQ(preset_scheme("W8A8").weights->strategy, Strategy::kChannel);
  EXPECT_EQ(preset_scheme("FP8").input_activations->observer, "static_minmax");
  EXPECT_EQ(preset_scheme("NVFP4").input_activations->dynamic, Dynamic::kLocal);
}

TEST(PresetTest, UnknownNamesTheNearest) {
  expect_recipe_error([] { preset_scheme("W4A61"); }, {"W4A61", "did you mean W4A16?"});
  expect_recipe_error([] { preset_scheme("something else"); }, {"something else", "FP8_DYNAMIC"});
}

TEST(PresetTest, UnknownNamesTheOneThatIsMeant) {
  const std::string symmetry = "W4A16 is symmetric, W4A16_ASYM asymmetric";
  for (const std::string name : {"W4A16-sym", "w4a16_SYM", "W4A16SYM", "W4A16ASYM"})
    expect_recipe_error([&] { preset_scheme(name); }, {name, symmetry});
  expect_recipe_error([] { preset_scheme("W8A8_SYM"); }, {"W8A8 is symmetric and has no asymmetric variant"});
  const std::string four = "4-bit integer schemes: W4A16, W4A16_ASYM, W4A8, W4A4, W4AFP8";
  for (const std::string name : {"int4", "INT-4", "w4", "uint4", "int4bit"})
    expect_recipe_error([&] { preset_scheme(name); }, {name, four});
  expect_recipe_error([] { preset_scheme("fp4"); }, {"4-bit floating-point schemes: NVFP4A16, NVFP4, MXFP4A16, MXFP4"});
  expect_recipe_error([] { preset_scheme("8-bit"); }, {"8-bit schemes: W8A16, W8A8", "FP8", "MXFP8"});
  expect_recipe_error([] { preset_scheme("int9"); }, {"unknown scheme 'int9'; did you mean INT8?"});
}

TEST(PresetTest, InferredFormats) {
  const std::vector<std::pair<std::string, std::string>> expected{{"W4A16", "pack-quantized"},
                                                                  {"W8A16", "pack-quantized"},
                                                                  {"W8A8", "int-quantized"},
                                                                  {"W4A8", "int-quantized"},
                                                                  {"W4AFP8", "pack-quantized"},
                                                                  {"FP8", "float-quantized"},
                                                                  {"FP8_BLOCK", "float-quantized"},
                                                                  {"NVFP4", "nvfp4-pack-quantized"},
                                                                  {"NVFP4A16", "nvfp4-pack-quantized"},
                                                                  {"MXFP4A16", "mxfp4-pack-quantized"},
                                                                  {"MXFP8", "mxfp8-quantized"},
                                                                  {"UNQUANTIZED", "dense"}};
  for (const auto& [name, format] : expected) EXPECT_EQ(infer_format(preset_scheme(name)), format) << name;
  QuantizationScheme weight_only = preset_scheme("FP8_DYNAMIC");
  weight_only.input_activations.reset();
  EXPECT_EQ(infer_format(weight_only), "naive-quantized");
}

TEST(PresetTest, IntegersWithFp8ActivationsArePackedWhereVllmReadsThem) {
  const auto changed = [](const std::function<void(QuantizationArgs&)>& change) {
    QuantizationScheme scheme = preset_scheme("W4AFP8");
    change(*scheme.weights);
    return infer_format(scheme);
  };
  EXPECT_EQ(changed([](QuantizationArgs&) {}), "pack-quantized");
  EXPECT_EQ(changed([](QuantizationArgs& a) { a.num_bits = 8; }), "int-quantized");
  EXPECT_EQ(changed([](QuantizationArgs& a) { a.group_size = 64; }), "int-quantized");
  EXPECT_EQ(changed([](QuantizationArgs& a) { a.symmetric = false; }), "int-quantized");
  EXPECT_EQ(changed([](QuantizationArgs& a) {
              a.strategy = Strategy::kChannel;
              a.group_size.reset();
            }),
            "int-quantized");
}

TEST(SupportTest, WhichPresetsAreImplemented) {
  const std::set<std::string> not_yet{"UNQUANTIZED"};
  for (const std::string& name : preset_names()) {
    if (not_yet.contains(name))
      expect_recipe_error([&] { require_supported(preset_scheme(name), "recipe: " + name); }, {"recipe: " + name});
    else
      EXPECT_NO_THROW(require_supported(preset_scheme(name), name)) << name;
  }
}

TEST(SupportTest, RefusesByName) {
  const auto refused = [](const std::string& text, const std::vector<std::string>& parts) {
    const QuantizationScheme scheme = parse_quantization_scheme(Json::parse(text), "recipe");
    expect_recipe_error([&] { require_supported(scheme, "recipe"); }, parts);
  };
  refused(R"({"targets":[]})", {"ignore"});
  refused(R"({"targets":[],"weights":{"num_bits":4,"type":"float","group_size":16}})",
          {"recipe.weights", "4-bit floating"});
  refused(R"({"targets":[],"weights":{"num_bits":4,"type":"float","group_size":64,"scale_dtype":"uint8"}})",
          {"recipe.weights", "4-bit floating"});
  refused(R"({"targets":[],"weights":{"num_bits":4,"type":"float","group_size":32,"scale_dtype":"float32"}})",
          {"recipe.weights", "4-bit floating"});
  refused(R"({"targets":[],"weights":{"type":"float","group_size":64,"scale_dtype":"uint8"}})", {"scale_dtype"});
  refused(R"({"targets":[],"weights":{"group_size":32,"scale_dtype":"uint8"}})", {"scale_dtype"});
  refused(R"({"targets":[],"weights":{"type":"float","group_size":32}})", {"per group"});
  refused(R"({"targets":[],"weights":{"type":"float","group_size":128}})", {"per group"});
  refused(R"({"targets":[],"weights":{"type":"float","symmetric":false}})", {"asymmetric"});
  refused(R"({"targets":[],"weights":{"num_bits":1}})", {"1-bit"});
  refused(R"({"targets":[],"weights":{"num_bits":9}})", {"9-bit"});
  refused(R"({"targets":[],"weights":{"strategy":"tensor_group","group_size":16}})", {"tensor_group"});
  refused(R"({"targets":[],"weights":{"strategy":"attn_head"}})", {"attn_head"});
  refused(R"({"targets":[],"weights":{"strategy":"token","dynamic":true}})", {"dynamic"});
  refused(R"({"targets":[],"weights":{"dynamic":true}})", {"dynamic"});
  refused(R"({"targets":[],"weights":{"strategy":"block","block_structure":[8,8]}})", {"per block"});
  refused(R"({"targets":[],"weights":{},"output_activations":{}})", {"output_activations"});
  const auto refused_inputs = [&](const std::string& inputs, const std::string& part) {
    refused(fmt::format(R"({{"targets":[],"weights":{{}},"input_activations":{{{}}}}})", inputs),
            {"recipe.input_activations", part});
  };
  refused_inputs(R"("group_size":32)", "strategy group");
  refused_inputs(R"("type":"float","symmetric":false)", "asymmetric");
  refused_inputs(R"("num_bits":9)", "9-bit");
  refused_inputs(R"("scale_dtype":"float32")", "scale_dtype");
  refused(R"({"targets":[],"weights":{"num_bits":4},"format":"float-quantized"})",
          {"float-quantized", "pack-quantized"});
  refused(R"({"targets":[],"weights":{"type":"float"},"format":"pack-quantized"})", {"pack-quantized"});
  refused(R"({"targets":[],"weights":{"num_bits":4},"format":"dense"})", {"dense"});
}

TEST(SupportTest, Nvfp4ActivationsHaveLocalScales) {
  QuantizationScheme scheme = preset_scheme("NVFP4");
  EXPECT_NO_THROW(require_supported(scheme, "recipe"));
  scheme.input_activations->dynamic = Dynamic::kFalse;
  expect_recipe_error([&] { require_supported(scheme, "recipe"); }, {"recipe.input_activations", "dynamic: local"});
}

TEST(SupportTest, AttentionHasScalesPerTensorOrHead) {
  QuantizationArgs args;
  args.type = NumberType::kFloat;
  for (const Strategy strategy : {Strategy::kTensor, Strategy::kAttentionHead}) {
    args.strategy = strategy;
    EXPECT_NO_THROW(require_supported_attention(args, "cache"));
  }
  const auto refused = [&](const auto& change, const std::string& part) {
    QuantizationArgs other = args;
    change(other);
    expect_recipe_error([&] { require_supported_attention(other, "cache"); }, {"cache", part});
  };
  refused([](QuantizationArgs& other) { other.strategy = Strategy::kChannel; }, "channel");
  refused([](QuantizationArgs& other) { other.dynamic = Dynamic::kTrue; }, "dynamic");
  refused([](QuantizationArgs& other) { other.num_bits = 4; }, "4-bit");
  refused([](QuantizationArgs& other) { other.symmetric = false; }, "asymmetric");
}

TEST(SupportTest, AcceptsOlderRecipesWithoutAScaleDtype) {
  for (const char* weights : {R"({"num_bits":4,"type":"float","strategy":"tensor_group","group_size":16})",
                              R"({"num_bits":4,"type":"float","group_size":32})"}) {
    const auto text = fmt::format(R"({{"targets":["Linear"],"weights":{}}})", weights);
    EXPECT_NO_THROW(require_supported(parse_quantization_scheme(Json::parse(text), "recipe"), "recipe")) << text;
  }
}

TEST(SupportTest, AcceptsIntegersOfTwoToEightBits) {
  for (int bits = 2; bits <= 8; ++bits)
    for (const bool symmetric : {true, false})
      for (const char* how : {R"("strategy":"tensor")", R"("strategy":"channel")", R"("group_size":64)"}) {
        const auto text = fmt::format(R"({{"targets":["Linear"],"weights":{{"num_bits":{},"symmetric":{},{}}}}})", bits,
                                      symmetric, how);
        EXPECT_NO_THROW(require_supported(parse_quantization_scheme(Json::parse(text), "recipe"), "recipe")) << text;
      }
}

}  // namespace
}  // namespace layerpress::quant
