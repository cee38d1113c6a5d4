#include "layerpress/gguf/importance.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <limits>

#include "layerpress/base/error.h"
#include "tests/checkpoint/temporary_folder.h"

namespace layerpress::gguf {
namespace {

const InputPlace kExpert{"blk.0.ffn_up_exps.weight", 1, 2, 3};

/// A file of two matrices of three columns, with one thing changed.
struct Sample {
  std::string type = "imatrix";
  std::vector<float> sums = {1, 2, 3, 4, 6, 8};
  std::vector<float> counts = {0, 2};
  bool has_counts = true;
  std::size_t cut = 0;  // bytes at the end

  std::string bytes() const {
    Metadata metadata = importance_metadata({{"text.jsonl"}, 7, 512});
    metadata.front().second = type;
    const BlockType* f32 = find_block_type("F32");
    std::vector<TensorInfo> tensors = {{kExpert.tensor + kSumsSuffix, {2, 3}, f32}};
    if (has_counts) tensors.push_back({kExpert.tensor + kCountsSuffix, {2, 1}, f32});
    std::string text = file_header(metadata, tensors);
    text.append(reinterpret_cast<const char*>(sums.data()), sums.size() * sizeof(float));
    text.resize(text.size() + kAlignment - sums.size() * sizeof(float));
    text.append(reinterpret_cast<const char*>(counts.data()), counts.size() * sizeof(float));
    text.resize(text.size() - cut);
    return text;
  }
};

class ImportanceTest : public ::testing::Test {
 protected:
  ImportanceFile open(const std::string& bytes) const { return ImportanceFile::open(folder_.write("a.gguf", bytes)); }
  std::string refusal(const std::string& bytes) const {
    try {
      open(bytes);
    } catch (const CheckpointError& error) {
      return error.what();
    }
    return "";
  }
  test::TemporaryFolder folder_;
};

TEST_F(ImportanceTest, ReadsWhatIsWritten) {
  const ImportanceFile file = open(Sample().bytes());
  EXPECT_EQ(file.origin().datasets, std::vector<std::string>{"text.jsonl"});
  EXPECT_EQ(file.origin().chunks, 7u);
  EXPECT_EQ(file.origin().chunk_size, 512u);
  EXPECT_EQ(file.entries(), 1u);
  const auto entry = file.find(kExpert);
  ASSERT_TRUE(entry);
  EXPECT_TRUE(entry->sums.equal(at::tensor({4.0F, 6.0F, 8.0F})));
  EXPECT_EQ(entry->tokens, 2);
  EXPECT_FALSE(file.find({"blk.1.ffn_up_exps.weight", 0, 2, 3}));
}

TEST_F(ImportanceTest, RefusesAnotherModelsFigures) {
  const ImportanceFile file = open(Sample().bytes());
  for (const InputPlace& place : {InputPlace{kExpert.tensor, 1, 2, 4}, InputPlace{kExpert.tensor, 1, 3, 3}})
    EXPECT_THROW(file.find(place), CheckpointError);
}

TEST_F(ImportanceTest, RefusesWhatIsNoImportanceFile) {
  EXPECT_NE(refusal(Sample{.type = "model"}.bytes()).find("not an importance file"), std::string::npos);
  EXPECT_NE(refusal(Sample{.has_counts = false}.bytes()).find("lacks"), std::string::npos);
  EXPECT_NE(refusal(Sample{.sums = {1, 2, 3, 4, 5, std::numeric_limits<float>::quiet_NaN()}}.bytes()).find("in_sum2"),
            std::string::npos);
  EXPECT_NE(refusal(Sample{.counts = {1, -1}}.bytes()).find("counts"), std::string::npos);
  EXPECT_NE(refusal(Sample{.cut = 4}.bytes()).find("outside the file"), std::string::npos);
  EXPECT_NE(refusal("GGUF").find("damaged"), std::string::npos);
}

TEST_F(ImportanceTest, NamesTheOldFormat) {
  const std::string name = "blk.0.attn_q.weight";
  std::string old("\x01\0\0\0", 4);
  old += static_cast<char>(name.size()) + std::string(3, '\0') + name + std::string(64, '\0');
  EXPECT_NE(refusal(old).find("--in-file"), std::string::npos);
}

TEST_F(ImportanceTest, PlacesExpertsInStacks) {
  const Architecture architecture = architecture_for({{"model_type", "qwen3_moe"},
                                                      {"hidden_size", 64},
                                                      {"num_hidden_layers", 2},
                                                      {"num_attention_heads", 4},
                                                      {"num_key_value_heads", 2},
                                                      {"head_dim", 16},
                                                      {"intermediate_size", 96},
                                                      {"moe_intermediate_size", 32},
                                                      {"num_experts", 4},
                                                      {"num_experts_per_tok", 2},
                                                      {"norm_topk_prob", true},
                                                      {"vocab_size", 100}});
  const std::vector<InputPlace> expert = input_places(architecture, "model.layers.1.mlp.experts.3.up_proj.weight", 64);
  ASSERT_EQ(expert.size(), 1u);
  EXPECT_EQ(expert[0].tensor, "blk.1.ffn_up_exps.weight");
  EXPECT_EQ(expert[0].matrix, 3);
  EXPECT_EQ(expert[0].matrices, 4);
}

}  // namespace
}  // namespace layerpress::gguf
