#include "layerpress/data/given_embeddings.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "layerpress/checkpoint/safetensors.h"
#include "layerpress/data/calibration_set.h"
#include "layerpress/data/load_samples.h"
#include "tests/checkpoint/temporary_folder.h"
#include "tests/data/thread_group.h"

namespace layerpress::data {
namespace {

using test::expect_says;
using test::message_of;
using test::TemporaryFolder;

/// Samples of 4, 2, 3 tokens; the first and the last have embeddings of 2 features, and as much for 3 layers to add.
CalibrationSet illustrated_set() {
  CalibrationSet set{{1, 2, 3, 4, 5, 6, 7, 8, 9}, {0, 4, 6, 9}};
  set.images.resize(3);
  set.images[0].embeddings = {at::tensor({1, 2}, at::kLong), at::arange(4, at::kFloat).view({2, 2}),
                              at::tensor({0, 1, 1, 2, 0, 1, 2, 3}, at::kLong).view({2, 4}),
                              at::arange(12, at::kFloat).view({2, 3, 2})};
  set.images[2].embeddings = {at::tensor({0}, at::kLong), at::full({1, 2}, 9, at::kFloat), at::Tensor(),
                              at::full({1, 3, 2}, 7, at::kFloat), at::tensor({0, 0, -1}, at::kLong)};
  return set;
}

class GivenEmbeddingsTest : public ::testing::Test {
 protected:
  std::filesystem::path path() const { return folder_ / "tokens.safetensors"; }

  /// The message for a file in which one tensor was replaced.
  std::string with(const std::string& name, const at::Tensor& value) {
    write_token_file(path(), illustrated_set());
    const auto file = checkpoint::SafetensorsFile::open(path());
    std::map<std::string, at::Tensor> tensors;
    for (const auto& [own, spec] : file->tensors()) tensors[own] = file->tensor(own);
    if (value.defined())
      tensors[name] = value;
    else
      tensors.erase(name);
    const auto spoiled = folder_ / "spoiled.safetensors";
    checkpoint::write_safetensors(spoiled, tensors);
    return message_of<DataError>([&] { read_token_file(spoiled); });
  }

  TemporaryFolder folder_;
};

TEST_F(GivenEmbeddingsTest, ComeBackFromTheFile) {
  write_token_file(path(), illustrated_set());
  const CalibrationSet found = read_token_file(path()), wanted = illustrated_set();
  for (const std::size_t sample : {0, 2}) {
    const GivenEmbeddings &mine = found.images[sample].embeddings, &own = wanted.images[sample].embeddings;
    EXPECT_TRUE(at::equal(mine.places, own.places));
    EXPECT_TRUE(at::equal(mine.values, own.values));
    EXPECT_TRUE(at::equal(mine.added, own.added));
  }
  EXPECT_FALSE(found.images[1].embeddings.are_there());
  EXPECT_TRUE(at::equal(found.images[0].embeddings.groups, at::full({4}, -1, at::kLong)));
  EXPECT_TRUE(at::equal(found.images[2].embeddings.groups, wanted.images[2].embeddings.groups));
  EXPECT_TRUE(at::equal(found.images[0].embeddings.positions, wanted.images[0].embeddings.positions));
  EXPECT_TRUE(at::equal(found.images[2].embeddings.positions, at::arange(3).expand({2, 3})));
}

TEST_F(GivenEmbeddingsTest, AreCutWithTheirSample) {
  write_token_file(path(), illustrated_set());
  DatasetOptions options;
  options.dataset = path().string();
  options.max_seq_length = 2;
  options.num_samples = 3;
  const CalibrationSet set = load_samples(options, folder_.path(), 100, {});
  EXPECT_TRUE(at::equal(set.images[0].embeddings.places, at::tensor({1}, at::kLong)));
  EXPECT_EQ(set.images[0].embeddings.values.sizes(), at::IntArrayRef({1, 2}));
  EXPECT_EQ(set.images[0].embeddings.positions.sizes(), at::IntArrayRef({2, 2}));
  EXPECT_EQ(set.images[0].embeddings.groups.numel(), 2);
  EXPECT_TRUE(at::equal(set.images[0].embeddings.added, at::arange(6, at::kFloat).view({1, 3, 2})));
}

TEST_F(GivenEmbeddingsTest, DamagedFilesAreRefused) {
  expect_says(with("embedding_offsets", at::tensor({0, 2, 2, 4}, at::kLong)), {"embedding_offsets", "to 3"});
  expect_says(with("embedding_offsets", at::tensor({0, 2, 3}, at::kLong)), {"embedding_offsets", "3 steps"});
  expect_says(with("embedding_places", at::tensor({2, 1, 0}, at::kLong)), {"sample 1", "embedding_places"});
  expect_says(with("embedding_places", at::tensor({1, 4, 0}, at::kLong)), {"sample 1", "embedding_places"});
  expect_says(with("embedding_places", at::tensor({1, 2, 0}, at::kInt)), {"embedding_places", "I64"});
  expect_says(with("embeddings.1", at::ones({1, 3})), {"embeddings.1", "[1, features]"});
  expect_says(with("embeddings.0", at::ones({3, 2})), {"embeddings.0", "[2, features]"});
  expect_says(with("embeddings.1", at::Tensor()), {"embeddings.1"});
  expect_says(with("added_embeddings.0", at::ones({2, 3, 4})), {"added_embeddings.0", "[2, layers, 2]"});
  expect_says(with("added_embeddings.0", at::ones({2, 6})), {"added_embeddings.0"});
  expect_says(with("added_embeddings.1", at::ones({1, 2, 2})), {"added_embeddings.1", "the same layers"});
  expect_says(with("added_embeddings.1", at::Tensor()), {"added_embeddings.1"});
  expect_says(with("added_embeddings.0", at::Tensor()), {"added_embeddings.1"});
  const auto groups = [&](const std::vector<std::int64_t>& values) {
    return with("attention_groups", at::tensor(values, at::kLong));
  };
  expect_says(groups({0, 0, 1, 1, -1, -1, 0, 0}), {"attention_groups", "[8]", "9 tokens"});
  expect_says(groups({0, 1, 0, 1, -1, -1, 0, 0, 0}), {"sample 1", "attention_groups", "consecutive"});
  expect_says(groups({0, -1, 0, 1, -1, -1, 0, 0, 0}), {"sample 1", "consecutive"});
  expect_says(groups({-2, 0, 0, 1, -1, -1, 0, 0, 0}), {"sample 1"});
  expect_says(groups({0, 0, 1, 1, -1, 1, 0, 0, 0}), {"sample 2", "with images"});
  expect_says(with("positions", at::zeros({2, 8}, at::kLong)), {"positions", "[2, 8]", "9 tokens"});
  expect_says(with("positions", at::zeros({17, 9}, at::kLong)), {"positions", "[17, 9]"});
}

}  // namespace
}  // namespace layerpress::data
