#include "layerpress/target/vllm_hardware.h"

#include <gtest/gtest.h>

namespace layerpress::target {
namespace {

using quant::preset_scheme;
using quant::QuantizationArgs;
using quant::QuantizationScheme;

/// With a shape that every kernel takes.
Serving serving_of(const std::vector<QuantizationScheme>& schemes, const CompressedParts& parts = {}) {
  std::vector<CompressedShape> modules;
  for (const QuantizationScheme& scheme : schemes) modules.push_back({scheme, 1024, 3 * 5 * 7 * 1024});
  return vllm_serving("out", modules, parts);
}

std::string hardware_of(const std::vector<std::string>& presets) {
  std::vector<QuantizationScheme> schemes;
  for (const std::string& preset : presets) schemes.push_back(preset_scheme(preset));
  return serving_of(schemes).hardware;
}

TEST(ServingHardwareTest, OneScheme) {
  EXPECT_EQ(hardware_of({"W4A16"}), "an NVIDIA GPU of the Ampere generation or later, or an x86 CPU");
  EXPECT_EQ(hardware_of({"W4A16_ASYM"}), hardware_of({"W4A16"}));
  EXPECT_EQ(hardware_of({"W8A16"}), "an NVIDIA GPU of the Ampere generation or later");
  EXPECT_EQ(hardware_of({"W8A8"}), "an NVIDIA GPU of the Turing, Ampere, Ada or Hopper generation, or an x86 CPU");
  EXPECT_EQ(hardware_of({"FP8_DYNAMIC"}),
            "an NVIDIA GPU of the Ada/Hopper generation or later (Ampere: slower, with activations in 16 bits), or an "
            "x86 CPU with AMX");
  for (const char* preset : {"FP8", "FP8_BLOCK"}) EXPECT_EQ(hardware_of({preset}), hardware_of({"FP8_DYNAMIC"}));
  EXPECT_EQ(hardware_of({"NVFP4"}),
            "an NVIDIA GPU of the Blackwell generation or later (Ampere, Ada or Hopper: slower, with activations in 16 "
            "bits)");
  for (const char* preset : {"MXFP4", "MXFP8"}) EXPECT_EQ(hardware_of({preset}), hardware_of({"NVFP4"}));
  for (const char* preset : {"NVFP4A16", "MXFP4A16", "MXFP8A16"})
    EXPECT_EQ(hardware_of({preset}), "an NVIDIA GPU of the Ampere generation or later");
  EXPECT_EQ(hardware_of({"W4AFP8"}), "an NVIDIA GPU of the Hopper generation");
}

TEST(ServingHardwareTest, SchemesWithoutKernel) {
  EXPECT_EQ(hardware_of({"W3A16"}),
            "transformers with compressed-tensors: 3-bit weights have no common vLLM kernel; use 4 or 8 bits");
  EXPECT_EQ(hardware_of({"W4A16", "W3A16"}), hardware_of({"W3A16"}));
  EXPECT_EQ(serving_of({preset_scheme("W4A16")}).command, "vllm serve out");
  EXPECT_EQ(serving_of({preset_scheme("W3A16")}).command, "no vLLM kernel; load it with transformers");
  EXPECT_EQ(serving_of({}, {.cache = *preset_scheme("W8A8").weights}).command,
            "no vLLM kernel; load it with transformers");
}

TEST(ServingHardwareTest, ShapesWithoutKernel) {
  const Serving blocks =
      vllm_serving("out", {{preset_scheme("FP8_BLOCK"), 256, 128}, {preset_scheme("FP8_BLOCK"), 192, 128}});
  EXPECT_EQ(blocks.command, "no vLLM kernel, and transformers does not run it");
  EXPECT_NE(blocks.hardware.find("but the weight is 192 x 128"), std::string::npos);
  EXPECT_EQ(vllm_serving("out", {{preset_scheme("W4AFP8"), 192, 128}}).command,
            "no vLLM kernel; load it with transformers");
}

TEST(ServingHardwareTest, AModelNeedsWhatAllItsSchemesNeed) {
  EXPECT_EQ(hardware_of({"NVFP4", "FP8_DYNAMIC"}), hardware_of({"NVFP4"}));
  EXPECT_EQ(hardware_of({"W4A16", "FP8_DYNAMIC"}), hardware_of({"FP8_DYNAMIC"}));
  EXPECT_EQ(hardware_of({"W4A16", "W8A8"}), "an NVIDIA GPU of the Ampere, Ada or Hopper generation, or an x86 CPU");
  EXPECT_EQ(hardware_of({"W8A8", "NVFP4A16"}), "an NVIDIA GPU of the Ampere, Ada or Hopper generation");
  EXPECT_EQ(hardware_of({"W4AFP8", "W8A8"}), hardware_of({"W4AFP8"}));
  EXPECT_EQ(hardware_of({"NVFP4", "W8A8"}),
            "no GPU that vLLM knows: Blackwell for one of its schemes, at most Hopper for another");
}

TEST(ServingHardwareTest, AttentionsAndUncompressedModulesNeedNothing) {
  QuantizationScheme attention;
  attention.input_activations = QuantizationArgs{};
  EXPECT_EQ(serving_of({attention, preset_scheme("W4A16")}).hardware, hardware_of({"W4A16"}));
  EXPECT_EQ(serving_of({}).hardware, "what the uncompressed model needs");
  const std::string of_experts = serving_of({preset_scheme("W4A16")}, {.experts = true}).hardware;
  EXPECT_EQ(of_experts, "an NVIDIA GPU of the Ampere generation or later");
  EXPECT_EQ(serving_of({preset_scheme("W4A16")}, {.embeddings = true}).hardware, of_experts);
  EXPECT_EQ(serving_of({preset_scheme("FP8_DYNAMIC")}, {.experts = true}).hardware, hardware_of({"FP8_DYNAMIC"}));
  EXPECT_EQ(serving_of({preset_scheme("W4A8")}, {.experts = true}).command,
            "no vLLM kernel, and transformers loads no such experts");
  QuantizationScheme with_zero_points = preset_scheme("W4A16_ASYM");
  with_zero_points.weights->group_size = 16;
  EXPECT_EQ(serving_of({with_zero_points}, {.experts = true}).command,
            "no vLLM kernel, and transformers loads no such experts");
  EXPECT_EQ(serving_of({preset_scheme("W3A16")}, {.experts = true}).command,
            "no vLLM kernel; load it with transformers");
  EXPECT_EQ(serving_of({preset_scheme("W8A8")}, {.experts = true, .cache = *preset_scheme("W8A8").weights}).command,
            "no vLLM kernel, and transformers loads no such experts");
}

}  // namespace
}  // namespace layerpress::target
