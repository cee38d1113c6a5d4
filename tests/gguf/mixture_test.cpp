#include "layerpress/gguf/mixture.h"

#include <gtest/gtest.h>

#include "layerpress/base/error.h"
#include "layerpress/gguf/blocks/block_type.h"

namespace layerpress::gguf {
namespace {

/// The values' and down weights of a model's layers.
std::vector<TensorShape> two_per_layer(std::int64_t layers, std::int64_t columns) {
  std::vector<TensorShape> tensors = {{"token_embd.weight", columns, 100}, {"output.weight", columns, 100}};
  for (std::int64_t i = 0; i < layers; ++i)
    for (const char* name : {"attn_v.weight", "ffn_down.weight"})
      tensors.push_back({"blk." + std::to_string(i) + "." + name, columns, 4});
  return tensors;
}

Architecture llama_of(std::int64_t layers) {
  Architecture architecture;
  architecture.name = "llama";
  architecture.layers = layers;
  architecture.heads = 8;
  architecture.kv_heads = 8;
  return architecture;
}

TEST(Mixture, GivesTheFirstLastAndEveryThirdLayerMore) {
  const auto types = mixture_types("Q4_K_M", llama_of(16), two_per_layer(16, 256), false);
  std::string better;
  for (std::size_t layer = 0; layer < 16; ++layer) {
    EXPECT_EQ(types.at(2 + 2 * layer), types.at(3 + 2 * layer));
    better += types.at(2 + 2 * layer) == "Q6_K" ? '6' : '4';
  }
  EXPECT_EQ(better, "6644644644644666");
  EXPECT_EQ(types.at(0), "Q4_K");
  EXPECT_EQ(types.at(1), "Q6_K");
}

TEST(Mixture, DoesNotDependOnTheOrderOfTensors) {
  std::vector<TensorShape> tensors = two_per_layer(12, 256);
  auto expected = mixture_types("Q3_K_M", llama_of(12), tensors, false);
  std::reverse(tensors.begin(), tensors.end());
  std::reverse(expected.begin(), expected.end());
  EXPECT_EQ(mixture_types("Q3_K_M", llama_of(12), tensors, false), expected);
}

TEST(Mixture, FallsBackWhereBlocksDoNotDivideRows) {
  EXPECT_EQ(type_for_columns("Q4_K", 512), "Q4_K");
  EXPECT_EQ(type_for_columns("Q4_K", 576), "Q5_0");
  EXPECT_EQ(type_for_columns("Q6_K", 576), "Q8_0");
  EXPECT_EQ(type_for_columns("IQ4_XS", 576), "IQ4_NL");
  EXPECT_EQ(type_for_columns("Q4_K", 100), "F16");
  EXPECT_EQ(type_for_columns("Q8_0", 100), "F16");
}

TEST(Mixture, ChoosesTypesThatExist) {
  for (const std::string& name : mixture_names())
    for (const std::int64_t columns : {256, 96, 50})
      for (const std::string& type : mixture_types(name, llama_of(8), two_per_layer(8, columns), true))
        EXPECT_NE(find_block_type(type), nullptr) << name << " " << type;
}

TEST(Mixture, Nvfp4IsWhereLlamaCppReadsTheNumberBesideIt) {
  Architecture architecture = llama_of(2);
  architecture.names.add_scales({"blk.#.attn_q", "output"});
  const std::vector<TensorShape> tensors = {{"blk.0.attn_q.weight", 128, 64}, {"blk.0.ffn_up.weight", 128, 64},
                                            {"blk.1.attn_q.weight", 96, 64},  {"token_embd.weight", 128, 64},
                                            {"output.weight", 128, 64},       {"blk.0.attn_norm.weight", 128, 1}};
  EXPECT_EQ(mixture_types("NVFP4", architecture, tensors, false),
            (std::vector<std::string>{"NVFP4", "Q8_0", "Q8_0", "Q8_0", "Q8_0", "F32"}));
}

TEST(Mixture, NamesTheNearestOfAnUnknownOne) {
  try {
    mixture_types("Q4_K_N", llama_of(2), {}, false);
    FAIL();
  } catch (const UsageError& error) {
    EXPECT_NE(std::string(error.what()).find("Q4_K_S"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace layerpress::gguf
