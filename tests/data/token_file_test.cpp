#include <ATen/Functions.h>
#include <gtest/gtest.h>

#include "layerpress/checkpoint/safetensors.h"
#include "layerpress/data/calibration_set.h"
#include "tests/checkpoint/temporary_folder.h"

namespace layerpress::data {
namespace {

using test::expect_says;
using test::message_of;
using test::TemporaryFolder;

using Tensors = std::map<std::string, at::Tensor>;

at::Tensor longs(const std::vector<std::int64_t>& values) { return at::tensor(values, at::kLong); }

std::string read_error(const Tensors& tensors, const std::map<std::string, std::string>& metadata = {}) {
  const TemporaryFolder folder;
  checkpoint::write_safetensors(folder / "tokens.safetensors", tensors, metadata);
  std::string message = message_of<DataError>([&] { read_token_file(folder / "tokens.safetensors"); });
  expect_says(message, {(folder / "tokens.safetensors").string()});
  return message;
}

TEST(TokenFile, RoundTrip) {
  const TemporaryFolder folder;
  const CalibrationSet set{{5, 0, 2147483647, 9}, {0, 1, 4}};
  write_token_file(folder / "t.safetensors", set);
  const CalibrationSet read = read_token_file(folder / "t.safetensors");
  EXPECT_EQ(read.tokens, set.tokens);
  EXPECT_EQ(read.sample_offsets, set.sample_offsets);
  const auto file = checkpoint::SafetensorsFile::open(folder / "t.safetensors");
  EXPECT_EQ(file->metadata(), (std::map<std::string, std::string>{
                                  {"format", "layerpress.calibration.v1"}, {"samples", "2"}, {"tokens", "4"}}));
  EXPECT_EQ(file->tensors().at("input_ids").dtype, at::kInt);
}

TEST(TokenFile, CarriesALossMask) {
  const TemporaryFolder folder;
  const CalibrationSet set{
      .tokens = {5, 0, 7, 9}, .sample_offsets = {0, 1, 4}, .images = {}, .loss_mask = {0, 1, 1, 0}};
  EXPECT_EQ(set.counted_tokens(), 2);
  write_token_file(folder / "t.safetensors", set);
  EXPECT_EQ(read_token_file(folder / "t.safetensors").loss_mask, set.loss_mask);
  const Tensors rest{{"input_ids", longs({1, 2, 3})}, {"sample_offsets", longs({0, 3})}};
  const auto fault = [&](const at::Tensor& mask) {
    Tensors tensors = rest;
    tensors["loss_mask"] = mask;
    return read_error(tensors);
  };
  expect_says(fault(at::ones({2}, at::kByte)), {"'loss_mask' must be U8 with one entry per token (3 entries)"});
  expect_says(fault(longs({1, 1, 1})), {"'loss_mask' must be U8"});
  expect_says(fault(at::full({3}, 2, at::kByte)), {"entry 0 of 'loss_mask' is 2"});
}

TEST(TokenFile, WideIdsAreAccepted) {
  const TemporaryFolder folder;
  checkpoint::write_safetensors(folder / "t.safetensors",
                                {{"input_ids", longs({1, 2, 3})}, {"sample_offsets", longs({0, 3})}});
  EXPECT_EQ(read_token_file(folder / "t.safetensors").tokens, (std::vector<std::int32_t>{1, 2, 3}));
}

TEST(TokenFile, FaultsAreNamed) {
  const at::Tensor ids = longs({1, 2, 3});
  const at::Tensor offsets = longs({0, 3});
  expect_says(read_error({{"sample_offsets", offsets}}), {"no tensor 'input_ids'", "layerpress prepare"});
  expect_says(read_error({{"input_ids", ids}}), {"no tensor 'sample_offsets'"});
  expect_says(read_error({{"input_ids", ids.to(at::kFloat)}, {"sample_offsets", offsets}}), {"'input_ids' is F32"});
  expect_says(read_error({{"input_ids", ids.reshape({1, 3})}, {"sample_offsets", offsets}}), {"2 dimensions"});
  expect_says(read_error({{"input_ids", longs({1, -2, 3})}, {"sample_offsets", offsets}}), {"entry 1", "-2"});
  expect_says(read_error({{"input_ids", longs({1, 2, 2147483648})}, {"sample_offsets", offsets}}),
              {"entry 2", "2147483648"});
  expect_says(read_error({{"input_ids", ids}, {"sample_offsets", longs({})}}), {"must begin with 0"});
  expect_says(read_error({{"input_ids", ids}, {"sample_offsets", longs({1, 3})}}), {"must begin with 0"});
  expect_says(read_error({{"input_ids", ids}, {"sample_offsets", longs({0, 2})}}),
              {"ends at 2, but the file has 3 tokens"});
  expect_says(read_error({{"input_ids", ids}, {"sample_offsets", longs({0, 4})}}), {"ends at 4"});
  expect_says(read_error({{"input_ids", ids}, {"sample_offsets", longs({0, 5, 3})}}),
              {"sample 2 begins at 5 and ends at 3"});
  expect_says(read_error({{"input_ids", ids}, {"sample_offsets", longs({0, 2, 2, 3})}}), {"sample 2"});
  expect_says(read_error({{"input_ids", ids}, {"sample_offsets", offsets}}, {{"format", "layerpress.calibration.v9"}}),
              {"layerpress.calibration.v9", "layerpress.calibration.v1"});
}

TEST(TokenFile, OtherFilesAreDataErrors) {
  const TemporaryFolder folder;
  expect_says(message_of<DataError>([&] { read_token_file(folder / "none.safetensors"); }), {"none.safetensors"});
  const auto text = folder.write("text.safetensors", "hello, this is no token file at all");
  expect_says(message_of<DataError>([&] { read_token_file(text); }), {"text.safetensors", "layerpress prepare"});
}

}  // namespace
}  // namespace layerpress::data
