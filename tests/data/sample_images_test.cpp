#include "layerpress/data/sample_images.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "layerpress/data/calibration_set.h"
#include "layerpress/data/load_samples.h"
#include "layerpress/data/shared_loading.h"
#include "tests/checkpoint/temporary_folder.h"
#include "tests/data/thread_group.h"

namespace layerpress::data {
namespace {

using test::expect_says;
using test::message_of;
using test::TemporaryFolder;
using test::ThreadGroup;

constexpr std::int64_t kTiles = 2;

/// `filled`: of each image, how many tiles it fills. Pixels and masks are different everywhere.
SampleImages make_images(std::int64_t tokens, const std::vector<std::int64_t>& filled, float first_pixel) {
  SampleImages images;
  if (filled.empty()) return images;
  images.mask = at::zeros({tokens, static_cast<std::int64_t>(filled.size()), kTiles}, at::kByte);
  for (std::size_t i = 0; i < filled.size(); ++i) {
    images.pixels.push_back(at::full({filled[i], 1, 2, 2}, first_pixel + static_cast<float>(i)));
    images.aspect_ratios.push_back(filled[i]);
    images.mask.select(1, static_cast<std::int64_t>(i)).slice(0, static_cast<std::int64_t>(i)).slice(1, 0, filled[i]) =
        1;
  }
  return images;
}

/// Samples of 4, 2, 3 tokens with 1, 0, 2 images.
CalibrationSet make_set() {
  CalibrationSet set{{1, 2, 3, 4, 5, 6, 7, 8, 9}, {0, 4, 6, 9}};
  set.images = {make_images(4, {2}, 10), make_images(2, {}, 0), make_images(3, {1, 2}, 20)};
  return set;
}

void expect_same(const SampleImages& found, const SampleImages& wanted) {
  EXPECT_EQ(found.aspect_ratios, wanted.aspect_ratios);
  ASSERT_EQ(found.mask.defined(), wanted.mask.defined());
  EXPECT_TRUE(!wanted.mask.defined() || at::equal(found.mask, wanted.mask));
  ASSERT_EQ(found.pixels.size(), wanted.pixels.size());
  for (std::size_t i = 0; i < wanted.pixels.size(); ++i) EXPECT_TRUE(at::equal(found.pixels[i], wanted.pixels[i]));
}

class SampleImagesTest : public ::testing::Test {
 protected:
  SampleImagesTest() { write_token_file(path(), make_set()); }
  std::filesystem::path path() const { return folder_ / "images.safetensors"; }
  DatasetOptions options() const {
    DatasetOptions options;
    options.dataset = path().string();
    options.num_samples = 3;
    return options;
  }

  /// The error that reading the file gives when one of its tensors is another one.
  std::string fault(const std::string& name, const std::optional<at::Tensor>& tensor) const {
    const auto file = checkpoint::SafetensorsFile::open(path());
    std::map<std::string, at::Tensor> tensors;
    for (const auto& [key, spec] : file->tensors()) tensors[key] = file->tensor(key);
    tensors.erase(name);
    if (tensor) tensors[name] = *tensor;
    const auto spoiled = folder_ / "spoiled.safetensors";
    checkpoint::write_safetensors(spoiled, tensors);
    const std::string message = message_of<DataError>([&] { read_token_file(spoiled); });
    expect_says(message, {spoiled.string()});
    return message;
  }

  TemporaryFolder folder_;
};

TEST_F(SampleImagesTest, RoundTrip) {
  const CalibrationSet set = read_token_file(path()), wanted = make_set();
  EXPECT_EQ(set.tokens, wanted.tokens);
  ASSERT_EQ(set.images.size(), 3u);
  for (std::size_t i = 0; i < 3; ++i) expect_same(set.images[i], wanted.images[i]);
  const auto file = checkpoint::SafetensorsFile::open(path());
  EXPECT_EQ(file->metadata().at("format"), "layerpress.calibration.v2");
}

TEST_F(SampleImagesTest, SetsWithoutImagesAreStoredAsBefore) {
  CalibrationSet set = make_set();
  for (SampleImages& images : set.images) images = {};
  write_token_file(folder_ / "text.safetensors", set);
  const auto file = checkpoint::SafetensorsFile::open(folder_ / "text.safetensors");
  EXPECT_EQ(file->metadata().at("format"), "layerpress.calibration.v1");
  EXPECT_EQ(file->tensors().size(), 2u);
  EXPECT_TRUE(read_token_file(folder_ / "text.safetensors").images.empty());
}

TEST_F(SampleImagesTest, CutSamplesHaveCutMasks) {
  DatasetOptions cut = options();
  cut.max_seq_length = 2;
  const CalibrationSet set = load_samples(cut, folder_.path(), 100, {});
  EXPECT_EQ(set.sample_offsets, (std::vector<std::int64_t>{0, 2, 4, 6}));
  SampleImages wanted = make_images(3, {1, 2}, 20);
  wanted.mask = wanted.mask.slice(0, 0, 2);
  expect_same(set.images.at(2), wanted);
  EXPECT_EQ(set.image_count(0), 1);
  EXPECT_EQ(set.image_count(1), 0);
}

TEST_F(SampleImagesTest, ImagesFollowTheirSamples) {
  DatasetOptions shuffled = options();
  shuffled.shuffle = true;
  shuffled.seed = 3;
  const CalibrationSet set = load_samples(shuffled, folder_.path(), 100, {}), whole = make_set();
  for (std::size_t i = 0; i < 3; ++i) {
    const std::int32_t first = set.tokens[static_cast<std::size_t>(set.sample_offsets[i])];
    expect_same(set.images[i], whole.images[first == 1 ? 0 : first == 5 ? 1 : 2]);
  }
}

TEST_F(SampleImagesTest, ImagesFollowTheirSamplesToOtherRanks) {
  for (const int ranks : {2, 3}) {
    ThreadGroup group(ranks);
    const auto outcomes =
        group.run([&](LoaderGroup& member) { return load_partition(options(), folder_.path(), 100, member, {}); });
    std::int64_t images = 0;
    for (const auto& outcome : outcomes) {
      ASSERT_EQ(outcome.error, "");
      for (std::int64_t i = 0; i < outcome.set.sample_count(); ++i) {
        const std::int32_t first =
            outcome.set.tokens[static_cast<std::size_t>(outcome.set.sample_offsets[static_cast<std::size_t>(i)])];
        expect_same(outcome.set.images.at(static_cast<std::size_t>(i)), make_set().images[first == 1   ? 0
                                                                                          : first == 5 ? 1
                                                                                                       : 2]);
        images += outcome.set.image_count(i);
      }
    }
    EXPECT_EQ(images, 3);
  }
}

TEST_F(SampleImagesTest, ImagesAreNotTornFromTheirText) {
  DatasetOptions joined = options();
  joined.concatenate = true;
  joined.max_seq_length = 2;
  expect_says(message_of<DataError>([&] { load_samples(joined, folder_.path(), 100, {}); }),
              {"--concatenate", "images"});
}

TEST_F(SampleImagesTest, BatchesAreLimitedByRowsOfImages) {
  const CalibrationSet set = make_set();
  const auto ends = [&](std::int64_t tokens, std::int64_t rows) {
    std::vector<std::int64_t> ends;
    for (const BatchRange& range : pack_batches(set, tokens, rows)) ends.push_back(range.last_sample);
    return ends;
  };
  using Ends = std::vector<std::int64_t>;
  EXPECT_EQ(ends(9, 3), (Ends{3}));
  EXPECT_EQ(ends(9, 4), (Ends{2, 3}));
  EXPECT_EQ(ends(6, 1), (Ends{2, 3}));
  EXPECT_EQ(ends(9, 1000), (Ends{1, 2, 3}));  // one that is too large is a batch by itself
}

TEST_F(SampleImagesTest, FaultsAreNamed) {
  const auto longs = [](std::vector<std::int64_t> values) { return at::tensor(values, at::kLong); };
  const auto bytes = [](std::vector<int> values, at::IntArrayRef shape) {
    return at::tensor(values, at::kInt).to(at::kByte).view(shape);
  };
  expect_says(fault("aspect_ratio_ids", std::nullopt), {"no tensor 'aspect_ratio_ids'", "layerpress prepare"});
  expect_says(fault("aspect_ratio_mask", std::nullopt), {"no tensor 'aspect_ratio_mask'"});
  expect_says(fault("cross_attention_mask", std::nullopt), {"no tensor 'cross_attention_mask'"});
  expect_says(fault("pixel_values.1", std::nullopt), {"no tensor 'pixel_values.1'"});
  expect_says(fault("image_offsets", longs({0, 1, 1})), {"image_offsets", "3 steps"});
  expect_says(fault("image_offsets", longs({0, 2, 1, 3})), {"image_offsets"});
  expect_says(fault("image_offsets", longs({1, 1, 1, 3})), {"image_offsets"});
  expect_says(fault("image_offsets", longs({0, 1, 1, std::int64_t{1} << 62})), {"image_offsets"});
  expect_says(fault("image_offsets", longs({0, 1, 1, 4})), {"aspect_ratio_ids", "3 entries for 4"});
  expect_says(fault("image_offsets", at::zeros({4})), {"image_offsets", "F32"});
  expect_says(fault("aspect_ratio_ids", longs({1, 2})), {"2 entries for 3"});
  expect_says(fault("aspect_ratio_mask", bytes({1, 1, 1, 0}, {2, 2})), {"aspect_ratio_mask", "[2, 2]"});
  expect_says(fault("aspect_ratio_mask", bytes({1, 1, 0, 1, 1, 1}, {3, 2})), {"row 1", "aspect_ratio_mask"});
  expect_says(fault("aspect_ratio_mask", bytes({1, 1, 0, 0, 1, 1}, {3, 2})), {"row 1"});
  expect_says(fault("aspect_ratio_mask", bytes({1, 1, 2, 0, 1, 1}, {3, 2})), {"row 1"});
  expect_says(fault("aspect_ratio_mask", bytes({1, 0, 1, 0, 1, 1}, {3, 2})), {"pixel_values.0", "[2, 1, 2, 2]"});
  expect_says(fault("pixel_values.2", at::zeros({2, 4})), {"pixel_values.2", "[2, 4]"});
  expect_says(fault("pixel_values.2", at::zeros({2, 1, 2, 2}, at::kLong)), {"pixel_values.2", "I64"});
  expect_says(fault("cross_attention_mask", at::zeros({9, 2}, at::kByte)), {"9 rows", "sample 3"});
  expect_says(fault("cross_attention_mask", at::zeros({11, 2}, at::kByte)), {"[11, 2]", "[10, 2]"});
  expect_says(fault("cross_attention_mask", at::zeros({10, 3}, at::kByte)), {"[10, 3]", "[10, 2]"});
  expect_says(fault("cross_attention_mask", at::full({10, 2}, 2, at::kByte)), {"sample 1", "neither 0 nor 1"});
  expect_says(fault("cross_attention_mask", at::ones({10, 2}, at::kByte)), {"sample 3", "image 1", "does not fill"});
}

}  // namespace
}  // namespace layerpress::data
