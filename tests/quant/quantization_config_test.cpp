#include "layerpress/quant/quantization_config.h"

#include <gtest/gtest.h>

#include <functional>

namespace layerpress::quant {
namespace {

/// What compressed-tensors 0.19.0 writes for a model with `ignore: [lm_head]`, one preset each.
struct Written {
  const char* preset;
  const char* text;
};

const Written kWritten[] = {
    {"W4A16",
     R"({"config_groups":{"group_0":{"format":"pack-quantized","input_activations":null,)"
     R"("output_activations":null,"targets":["Linear"],"weights":{"actorder":null,"block_structure":null,)"
     R"("dynamic":false,"group_size":128,"num_bits":4,"observer":"memoryless_minmax","observer_kwargs":{},)"
     R"("scale_dtype":null,"strategy":"group","symmetric":true,"type":"int","zp_dtype":null}}},)"
     R"("format":"pack-quantized","global_compression_ratio":null,"ignore":["lm_head"],"kv_cache_scheme":null,)"
     R"("quant_method":"compressed-tensors","quantization_status":"compressed","sparsity_config":{},)"
     R"("transform_config":{},"version":"0.19.0"})"},
    {"W4A16_ASYM",
     R"({"config_groups":{"group_0":{"format":"pack-quantized","input_activations":null,)"
     R"("output_activations":null,"targets":["Linear"],"weights":{"actorder":null,"block_structure":null,)"
     R"("dynamic":false,"group_size":128,"num_bits":4,"observer":"memoryless_minmax","observer_kwargs":{},)"
     R"("scale_dtype":null,"strategy":"group","symmetric":false,"type":"int","zp_dtype":"torch.int8"}}},)"
     R"("format":"pack-quantized","global_compression_ratio":null,"ignore":["lm_head"],"kv_cache_scheme":null,)"
     R"("quant_method":"compressed-tensors","quantization_status":"compressed","sparsity_config":{},)"
     R"("transform_config":{},"version":"0.19.0"})"},
    {"W8A16",
     R"({"config_groups":{"group_0":{"format":"pack-quantized","input_activations":null,)"
     R"("output_activations":null,"targets":["Linear"],"weights":{"actorder":null,"block_structure":null,)"
     R"("dynamic":false,"group_size":128,"num_bits":8,"observer":"memoryless_minmax","observer_kwargs":{},)"
     R"("scale_dtype":null,"strategy":"group","symmetric":true,"type":"int","zp_dtype":null}}},)"
     R"("format":"pack-quantized","global_compression_ratio":null,"ignore":["lm_head"],"kv_cache_scheme":null,)"
     R"("quant_method":"compressed-tensors","quantization_status":"compressed","sparsity_config":{},)"
     R"("transform_config":{},"version":"0.19.0"})"},
    {"W8A8", R"({"config_groups":{"group_0":{"format":"int-quantized","input_activations":{"actorder":null,)"
             R"("block_structure":null,"dynamic":true,"group_size":null,"num_bits":8,"observer":null,)"
             R"("observer_kwargs":{},"scale_dtype":null,"strategy":"token","symmetric":true,"type":"int",)"
             R"("zp_dtype":null},"output_activations":null,"targets":["Linear"],"weights":{"actorder":null,)"
             R"("block_structure":null,"dynamic":false,"group_size":null,"num_bits":8,"observer":"memoryless_minmax",)"
             R"("observer_kwargs":{},"scale_dtype":null,"strategy":"channel","symmetric":true,"type":"int",)"
             R"("zp_dtype":null}}},"format":"int-quantized","global_compression_ratio":null,"ignore":["lm_head"],)"
             R"("kv_cache_scheme":null,"quant_method":"compressed-tensors","quantization_status":"compressed",)"
             R"("sparsity_config":{},"transform_config":{},"version":"0.19.0"})"},
    {"W4A8", R"({"config_groups":{"group_0":{"format":"int-quantized","input_activations":{"actorder":null,)"
             R"("block_structure":null,"dynamic":true,"group_size":null,"num_bits":8,"observer":null,)"
             R"("observer_kwargs":{},"scale_dtype":null,"strategy":"token","symmetric":true,"type":"int",)"
             R"("zp_dtype":null},"output_activations":null,"targets":["Linear"],"weights":{"actorder":null,)"
             R"("block_structure":null,"dynamic":false,"group_size":128,"num_bits":4,"observer":"memoryless_minmax",)"
             R"("observer_kwargs":{},"scale_dtype":null,"strategy":"group","symmetric":true,"type":"int",)"
             R"("zp_dtype":null}}},"format":"int-quantized","global_compression_ratio":null,"ignore":["lm_head"],)"
             R"("kv_cache_scheme":null,"quant_method":"compressed-tensors","quantization_status":"compressed",)"
             R"("sparsity_config":{},"transform_config":{},"version":"0.19.0"})"},
    {"W4AFP8", R"({"config_groups":{"group_0":{"format":"pack-quantized","input_activations":{"actorder":null,)"
               R"("block_structure":null,"dynamic":true,"group_size":null,"num_bits":8,"observer":null,)"
               R"("observer_kwargs":{},"scale_dtype":null,"strategy":"token","symmetric":true,"type":"float",)"
               R"("zp_dtype":null},"output_activations":null,"targets":["Linear"],"weights":{"actorder":null,)"
               R"("block_structure":null,"dynamic":false,"group_size":128,"num_bits":4,"observer":"memoryless_minmax",)"
               R"("observer_kwargs":{},"scale_dtype":null,"strategy":"group","symmetric":true,"type":"int",)"
               R"("zp_dtype":null}}},"format":"pack-quantized","global_compression_ratio":null,"ignore":["lm_head"],)"
               R"("kv_cache_scheme":null,"quant_method":"compressed-tensors","quantization_status":"compressed",)"
               R"("sparsity_config":{},"transform_config":{},"version":"0.19.0"})"},
    {"FP8_DYNAMIC",
     R"({"config_groups":{"group_0":{"format":"float-quantized","input_activations":{"actorder":null,)"
     R"("block_structure":null,"dynamic":true,"group_size":null,"num_bits":8,"observer":null,)"
     R"("observer_kwargs":{},"scale_dtype":null,"strategy":"token","symmetric":true,"type":"float",)"
     R"("zp_dtype":null},"output_activations":null,"targets":["Linear"],"weights":{"actorder":null,)"
     R"("block_structure":null,"dynamic":false,"group_size":null,"num_bits":8,"observer":"memoryless_minmax",)"
     R"("observer_kwargs":{},"scale_dtype":null,"strategy":"channel","symmetric":true,"type":"float",)"
     R"("zp_dtype":null}}},"format":"float-quantized","global_compression_ratio":null,"ignore":["lm_head"],)"
     R"("kv_cache_scheme":null,"quant_method":"compressed-tensors","quantization_status":"compressed",)"
     R"("sparsity_config":{},"transform_config":{},"version":"0.19.0"})"},
    {"FP8_BLOCK",
     R"({"config_groups":{"group_0":{"format":"float-quantized","input_activations":{"actorder":null,)"
     R"("block_structure":null,"dynamic":true,"group_size":128,"num_bits":8,"observer":null,"observer_kwargs":{},)"
     R"("scale_dtype":null,"strategy":"group","symmetric":true,"type":"float","zp_dtype":null},)"
     R"("output_activations":null,"targets":["Linear"],"weights":{"actorder":null,"block_structure":[128,128],)"
     R"("dynamic":false,"group_size":null,"num_bits":8,"observer":"memoryless_minmax","observer_kwargs":{},)"
     R"("scale_dtype":null,"strategy":"block","symmetric":true,"type":"float","zp_dtype":null}}},)"
     R"("format":"float-quantized","global_compression_ratio":null,"ignore":["lm_head"],"kv_cache_scheme":null,)"
     R"("quant_method":"compressed-tensors","quantization_status":"compressed","sparsity_config":{},)"
     R"("transform_config":{},"version":"0.19.0"})"},
};

/// Attention in FP8_DYNAMIC, the rest in W4A16.
const char* const kMixed =
    R"({"config_groups":{"group_0":{"format":"float-quantized","input_activations":{"actorder":null,)"
    R"("block_structure":null,"dynamic":true,"group_size":null,"num_bits":8,"observer":null,)"
    R"("observer_kwargs":{},"scale_dtype":null,"strategy":"token","symmetric":true,"type":"float",)"
    R"("zp_dtype":null},"output_activations":null,"targets":["re:.*self_attn.*_proj$"],)"
    R"("weights":{"actorder":null,"block_structure":null,"dynamic":false,"group_size":null,"num_bits":8,)"
    R"("observer":"memoryless_minmax","observer_kwargs":{},"scale_dtype":null,"strategy":"channel",)"
    R"("symmetric":true,"type":"float","zp_dtype":null}},"group_1":{"format":"pack-quantized",)"
    R"("input_activations":null,"output_activations":null,"targets":["re:.*mlp.*"],"weights":{"actorder":null,)"
    R"("block_structure":null,"dynamic":false,"group_size":128,"num_bits":4,"observer":"memoryless_minmax",)"
    R"("observer_kwargs":{},"scale_dtype":null,"strategy":"group","symmetric":true,"type":"int",)"
    R"("zp_dtype":null}}},"format":"mixed-precision","global_compression_ratio":null,"ignore":["lm_head"],)"
    R"("kv_cache_scheme":null,"quant_method":"compressed-tensors","quantization_status":"compressed",)"
    R"("sparsity_config":{},"transform_config":{},"version":"0.19.0"})";

QuantizationScheme observed_preset(const std::string& name, std::vector<std::string> targets) {
  QuantizationScheme scheme = preset_scheme(name);
  scheme.targets = std::move(targets);
  scheme.weights->observer = "memoryless_minmax";
  return scheme;
}

TEST(QuantizationConfigTest, WritesWhatTheLibraryWrites) {
  for (const Written& written : kWritten) {
    QuantizationConfig config;
    config.groups.emplace_back("group_0", observed_preset(written.preset, {"Linear"}));
    config.ignore = {"lm_head"};
    EXPECT_EQ(to_json(config).dump(), Json::parse(written.text).dump()) << written.preset;
  }
}

TEST(QuantizationConfigTest, WritesMixedPrecision) {
  QuantizationConfig config;
  config.groups.emplace_back("group_0", observed_preset("FP8_DYNAMIC", {"re:.*self_attn.*_proj$"}));
  config.groups.emplace_back("group_1", observed_preset("W4A16", {"re:.*mlp.*"}));
  config.ignore = {"lm_head"};
  EXPECT_EQ(to_json(config).dump(), Json::parse(kMixed).dump());
}

TEST(QuantizationConfigTest, ReadsBackWhatItWrote) {
  for (const Written& written : kWritten) {
    const QuantizationConfig config = parse_quantization_config(Json::parse(written.text), "config.json");
    ASSERT_EQ(config.groups.size(), 1u);
    EXPECT_EQ(config.ignore, std::vector<std::string>{"lm_head"});
    QuantizationScheme expected = observed_preset(written.preset, {"Linear"});
    expected.format = infer_format(expected);
    EXPECT_EQ(config.groups[0].second, expected) << written.preset;
    EXPECT_EQ(to_json(config).dump(), Json::parse(written.text).dump());
  }
}

TEST(QuantizationConfigTest, WritesTheActivationOrderOfEveryStrategy) {
  QuantizationConfig config;
  config.groups.emplace_back("group_0", observed_preset("W4A16", {"Linear"}));
  config.groups.emplace_back("group_1", observed_preset("W8A8", {"Linear"}));
  for (auto& [name, scheme] : config.groups) scheme.weights->actorder = "static";
  const Json groups = to_json(config)["config_groups"];
  EXPECT_EQ(groups["group_0"]["weights"]["actorder"], "static");
  EXPECT_EQ(groups["group_1"]["weights"]["actorder"], "static");
}

TEST(QuantizationConfigTest, AGroupWithoutFormatTakesTheOneAtTheTop) {
  Json object = Json::parse(kWritten[0].text);
  object["config_groups"]["group_0"]["format"] = nullptr;
  EXPECT_EQ(parse_quantization_config(object, "config.json").groups[0].second.format, "pack-quantized");
  object["format"] = "int-quantized";
  EXPECT_EQ(parse_quantization_config(object, "config.json").groups[0].second.format, "int-quantized");
  object["format"] = "mixed-precision";
  EXPECT_EQ(parse_quantization_config(object, "config.json").groups[0].second.format, "pack-quantized");
}

TEST(QuantizationConfigTest, APresetMayNameAGroup) {
  Json object = Json::parse(kWritten[0].text);
  object["config_groups"] = {{"W8A8", {"Linear"}}};
  const QuantizationConfig config = parse_quantization_config(object, "config.json");
  EXPECT_EQ(config.groups[0].second.weights, preset_scheme("INT8").weights);
  EXPECT_EQ(config.groups[0].second.targets, std::vector<std::string>{"Linear"});
}

void expect_refused(const std::function<void(Json&)>& damage, const std::string& expected) {
  Json object = Json::parse(kWritten[0].text);
  damage(object);
  try {
    parse_quantization_config(object, "config.json");
    ADD_FAILURE() << "accepted: " << object.dump();
  } catch (const CheckpointError& error) {
    EXPECT_NE(std::string(error.what()).find(expected), std::string::npos) << error.what();
    EXPECT_NE(std::string(error.what()).find("config.json"), std::string::npos) << error.what();
  }
}

TEST(QuantizationConfigTest, RefusesWhatItCannotRead) {
  expect_refused([](Json& o) { o["quant_method"] = "awq"; }, "awq");
  expect_refused([](Json& o) { o.erase("quant_method"); }, "quant_method");
  expect_refused([](Json& o) { o["quantization_status"] = "calibration"; }, "calibration");
  expect_refused([](Json& o) { o["kv_cache_scheme"] = {{"num_bits", 8}, {"dynamic", true}}; }, "kv_cache_scheme");
  expect_refused([](Json& o) { o["transform_config"] = {{"config_groups", 1}}; }, "transform_config");
  expect_refused([](Json& o) { o["sparsity_config"] = {{"format", "sparse-24-bitmask"}}; }, "sparsity_config");
  expect_refused([](Json& o) { o["sparsity_config"] = {{"format", "sparse-24-bitmask"}}; }, "sparse-24-bitmask");
  expect_refused([](Json& o) { o["format"] = "marlin-24"; }, "format marlin-24 is not supported");
  expect_refused([](Json& o) { o["config_groups"] = Json::object(); }, "config_groups");
  expect_refused([](Json& o) { o["config_groups"] = 3; }, "config_groups");
  expect_refused([](Json& o) { o["config_groups"]["group_0"]["format"] = "marlin-24"; }, "marlin-24");
  expect_refused([](Json& o) { o["config_groups"]["group_0"]["format"] = "float-quantized"; }, "float-quantized");
  expect_refused([](Json& o) { o["config_groups"]["group_0"]["weights"]["num_bits"] = "four"; }, "num_bits");
  expect_refused([](Json& o) { o["config_groups"]["group_0"]["weights"]["private"] = 1; }, "private");
  expect_refused([](Json& o) { o["ignore"] = 3; }, "ignore");
  EXPECT_THROW(parse_quantization_config(Json::array(), "config.json"), CheckpointError);
}

ModuleName linear(const std::string& name) { return {name, {"Linear"}}; }

QuantizationConfig grouped(const std::vector<std::vector<std::string>>& targets, std::vector<std::string> ignore = {}) {
  QuantizationConfig config;
  for (std::size_t i = 0; i < targets.size(); ++i)
    config.groups.emplace_back(fmt::format("group_{}", i), observed_preset("W4A16", targets[i]));
  config.ignore = std::move(ignore);
  return config;
}

TEST(AssignGroupsTest, NameBeatsPatternBeatsClass) {
  const QuantizationConfig config = grouped({{"Linear"}, {"re:.*q_proj"}, {"layers.1.q_proj"}});
  EXPECT_EQ(assign_groups(config, {linear("layers.0.q_proj"),
                                   linear("layers.1.q_proj"),
                                   linear("layers.1.k_proj"),
                                   {"layers.0.norm", {"RMSNorm"}}}),
            (std::vector<int>{1, 2, 0, -1}));
}

TEST(AssignGroupsTest, PatternsCompeteInAlphabeticalOrderWhateverTheirGroup) {
  const QuantizationConfig config = grouped({{"re:.*proj"}, {"re:.*_proj"}});
  // "re:.*_proj" sorts before "re:.*proj".
  EXPECT_EQ(assign_groups(config, {linear("a.q_proj"), linear("a.qproj")}), (std::vector<int>{1, 0}));
}

TEST(AssignGroupsTest, IgnoreWinsOverEverything) {
  const QuantizationConfig config = grouped({{"Linear", "lm_head"}}, {"lm_head", "re:.*gate$", "Router"});
  EXPECT_EQ(
      assign_groups(config, {linear("lm_head"), linear("mlp.gate"), {"mlp.router", {"Router", "Linear"}}, linear("x")}),
      (std::vector<int>{-1, -1, -1, 0}));
}

TEST(AssignGroupsTest, TheLastGroupWithATargetOwnsIt) {
  EXPECT_EQ(assign_groups(grouped({{"Linear"}, {"Linear"}}), {linear("x")}), std::vector<int>{1});
}

TEST(AssignGroupsTest, ClassesAreAskedInAlphabeticalOrder) {
  const QuantizationConfig config = grouped({{"Linear"}, {"ExpertLinear"}});
  EXPECT_EQ(assign_groups(config, {{"x", {"ExpertLinear", "Linear"}}, linear("y")}), (std::vector<int>{1, 0}));
}

}  // namespace
}  // namespace layerpress::quant
