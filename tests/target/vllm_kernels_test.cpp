#include "layerpress/target/vllm_kernels.h"

#include <gtest/gtest.h>

#include <functional>

namespace layerpress::target {
namespace {

using namespace quant;  // NOLINT(google-build-using-namespace): schemes in all of their parts

QuantizationScheme with_weights(const std::string& preset, const std::function<void(QuantizationArgs&)>& change) {
  QuantizationScheme scheme = preset_scheme(preset);
  change(*scheme.weights);
  return scheme;
}

void expect_gap(const QuantizationScheme& scheme, std::int64_t rows, std::int64_t columns, const std::string& part) {
  const std::optional<std::string> gap = vllm_kernel_gap(scheme, rows, columns);
  ASSERT_TRUE(gap.has_value()) << "no gap reported; expected " << part;
  EXPECT_NE(gap->find(part), std::string::npos) << *gap;
}

TEST(ReaderSupportTest, CommonSchemesHaveAKernel) {
  for (const char* preset : {"W4A16", "W4A16_ASYM", "W8A16", "W8A8", "FP8_DYNAMIC", "FP8_BLOCK"})
    EXPECT_EQ(vllm_kernel_gap(preset_scheme(preset), 512, 1024), std::nullopt) << preset;
  for (const int size : {32, 64, 256})
    EXPECT_EQ(vllm_kernel_gap(with_weights("W4A16", [&](QuantizationArgs& a) { a.group_size = size; }), 512, 1024),
              std::nullopt);
  EXPECT_EQ(vllm_kernel_gap(preset_scheme("UNQUANTIZED"), 1, 1), std::nullopt);
}

TEST(ReaderSupportTest, CachesAreSymmetricFp8) {
  QuantizationArgs cache;
  cache.type = NumberType::kFloat;
  cache.num_bits = 8;
  cache.symmetric = true;
  EXPECT_EQ(vllm_cache_gap(cache), std::nullopt);
  cache.symmetric = false;
  EXPECT_NE(vllm_cache_gap(cache), std::nullopt);
  cache.symmetric = true;
  cache.type = NumberType::kInt;
  EXPECT_NE(vllm_cache_gap(cache), std::nullopt);
}

TEST(ReaderSupportTest, OddWidthsAndGroups) {
  for (const char* preset : {"W2A16", "W3A16", "W5A16", "W6A16", "W7A16"})
    expect_gap(preset_scheme(preset), 512, 1024, "bit weights have no common vLLM kernel");
  expect_gap(with_weights("W4A16", [](QuantizationArgs& a) { a.group_size = 16; }), 512, 1024, "group size 16");
  expect_gap(with_weights("W8A16", [](QuantizationArgs& a) { a.group_size = 256; }), 512, 1024, "group size 256");
  expect_gap(preset_scheme("W4A16"), 512, 576, "576 columns");
}

TEST(ReaderSupportTest, WhatReadersRefuse) {
  const auto tensor = [](QuantizationArgs& a) {
    a.strategy = Strategy::kTensor;
    a.group_size.reset();
  };
  expect_gap(with_weights("W4A16", tensor), 512, 1024, "one scale per tensor");
  const auto asymmetric = [](QuantizationArgs& a) { a.symmetric = false; };
  expect_gap(with_weights("W8A8", asymmetric), 512, 1024, "asymmetric");
  expect_gap(with_weights("W8A16", asymmetric), 512, 1024, "Hopper");
  expect_gap(preset_scheme("W4A16_ASYM"), 510, 1024, "zero points");
  expect_gap(preset_scheme("W4A8"), 512, 1024, "pack-quantized");
  QuantizationScheme unpacked = preset_scheme("W8A16");
  unpacked.format = "int-quantized";
  expect_gap(unpacked, 512, 1024, "pack-quantized");
}

TEST(ReaderSupportTest, Fp8BlocksAndActivations) {
  expect_gap(preset_scheme("FP8_BLOCK"), 576, 1024, "576 x 1024");
  expect_gap(preset_scheme("FP8_BLOCK"), 512, 192, "vLLM and transformers need multiples of 128");
  expect_gap(with_weights("FP8_BLOCK",
                          [](QuantizationArgs& a) {
                            a.block_structure = {64, 64};
                          }),
             512, 1024, "64 x 64");
  expect_gap(preset_scheme("W4AFP8"), 512, 1024, "Hopper");
  expect_gap(preset_scheme("W4AFP8"), 500, 1024, "128");
  expect_gap(with_weights("W4AFP8", [](QuantizationArgs& a) { a.group_size = 64; }), 512, 1024, "group size 128");
  QuantizationScheme eight = preset_scheme("W8A8");
  eight.input_activations->type = NumberType::kFloat;
  expect_gap(eight, 512, 1024, "also where the scheme says fp8");
}

TEST(ReaderSupportTest, Embeddings) {
  for (const char* preset : {"W8A16", "W4A16", "W2A16"})
    EXPECT_EQ(vllm_embedding_gap(preset_scheme(preset)), std::nullopt) << preset;
  for (const char* preset : {"W3A16", "W4A16_ASYM", "W8A8", "FP8_DYNAMIC"})
    EXPECT_TRUE(vllm_embedding_gap(preset_scheme(preset)).has_value()) << preset;
}

TEST(VllmKernelsTest, VocabulariesOfModelTypes) {
  EXPECT_TRUE(vllm_vocabulary_gaps("llama", true, true).empty());
  EXPECT_TRUE(vllm_vocabulary_gaps("cohere2", false, false).empty());
  ASSERT_EQ(vllm_vocabulary_gaps("cohere2", true, true).size(), 2u);
  EXPECT_NE(vllm_vocabulary_gaps("gemma2", true, false).front().find("logits of gemma2"), std::string::npos);
  EXPECT_NE(vllm_vocabulary_gaps("mixtral", true, true).front().find("embeddings of mixtral"), std::string::npos);
}

}  // namespace
}  // namespace layerpress::target
