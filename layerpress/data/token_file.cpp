// A safetensors file: `input_ids` I32 (or I64) [tokens], `sample_offsets` I64 [samples + 1] from 0 to tokens, `loss_mask` U8
// [tokens] if only some of them count, and the tensors of sample_images.cpp. The metadata "format" names the version of this layout;
// files with images have the second version.
#include "layerpress/data/token_file.h"

#include <ATen/Functions.h>

#include <limits>
#include <map>
#include <memory>
#include <string>

#include "layerpress/base/error.h"
#include "layerpress/checkpoint/safetensors.h"
#include "layerpress/data/calibration_set.h"

namespace layerpress::data {
namespace {

constexpr const char* kTokensName = "input_ids";
constexpr const char* kOffsetsName = "sample_offsets";
constexpr const char* kMaskName = "loss_mask";
constexpr const char* kFormat = "layerpress.calibration.v1";
constexpr const char* kFormatWithImages = "layerpress.calibration.v2";
constexpr const char* kFormatWithEmbeddings = "layerpress.calibration.v3";

std::shared_ptr<const checkpoint::SafetensorsFile> open_file(const std::filesystem::path& path) {
  const auto as_token_file = [](const Error& fault) {
    return DataError("{} (as a token file, which `layerpress prepare` makes)", fault.what());
  };
  try {
    return checkpoint::SafetensorsFile::open(path);
  } catch (const IoError& fault) {
    throw as_token_file(fault);
  } catch (const CheckpointError& fault) {
    throw as_token_file(fault);
  }
}

void check_format(const checkpoint::SafetensorsFile& file) {
  const auto found = file.metadata().find("format");
  if (found == file.metadata().end() || !found->second.starts_with("layerpress.")) return;
  if (found->second != kFormat && found->second != kFormatWithImages && found->second != kFormatWithEmbeddings)
    throw DataError(
        "[data.tokens] {}: has format '{}', this program reads '{}' to '{}'; make it again with `layerpress prepare`",
        file.path().string(), found->second, kFormat, kFormatWithEmbeddings);
}

at::Tensor read_vector(const checkpoint::SafetensorsFile& file, const char* name) {
  const std::string where = file.path().string();
  if (!file.contains(name))
    throw DataError("[data.tokens] {}: has no tensor '{}'; make it with `layerpress prepare`", where, name);
  const checkpoint::StoredTensor& spec = file.tensors().at(name);
  const bool integers = spec.dtype == at::kInt || spec.dtype == at::kLong;
  if (!integers || spec.shape.size() != 1)
    throw DataError("[data.tokens] {}: '{}' is {} with {} dimensions; expected I32 or I64 with one", where, name,
                    checkpoint::dtype_name(spec.dtype), spec.shape.size());
  return file.tensor(name);
}

/// Undefined where there is none.
at::Tensor read_mask(const checkpoint::SafetensorsFile& file, std::int64_t tokens) {
  if (!file.contains(kMaskName)) return {};
  const checkpoint::StoredTensor& spec = file.tensors().at(kMaskName);
  if (spec.dtype != at::kByte || spec.shape != std::vector<std::int64_t>{tokens})
    throw DataError(
        "[data.tokens] {}: '{}' must be U8 with one entry per token ({} entries); make the file again with `layerpress "
        "prepare`",
        file.path().string(), kMaskName, tokens);
  return file.tensor(kMaskName);
}

std::vector<std::int64_t> read_offsets(const at::Tensor& stored, std::int64_t tokens, const std::string& where) {
  const at::Tensor wide = stored.to(at::kLong);
  const std::int64_t* offsets = wide.const_data_ptr<std::int64_t>();
  const std::int64_t count = wide.numel();
  if (count == 0 || offsets[0] != 0) throw DataError("[data.tokens] {}: '{}' must begin with 0", where, kOffsetsName);
  for (std::int64_t sample = 1; sample < count; ++sample)
    if (offsets[sample] <= offsets[sample - 1])
      throw DataError("[data.tokens] {}: sample {} begins at {} and ends at {}", where, sample, offsets[sample - 1],
                      offsets[sample]);
  if (offsets[count - 1] != tokens)
    throw DataError("[data.tokens] {}: '{}' ends at {}, but the file has {} tokens", where, kOffsetsName,
                    offsets[count - 1], tokens);
  return {offsets, offsets + count};
}

}  // namespace

TokenFile::TokenFile(const std::filesystem::path& path) : where_(path.string()) {
  const auto file = open_file(path);
  check_format(*file);
  ids_ = read_vector(*file, kTokensName);
  sample_offsets_ = read_offsets(read_vector(*file, kOffsetsName), ids_.numel(), where_);
  loss_mask_ = read_mask(*file, ids_.numel());
  if (StoredImages::are_in(*file)) images_.emplace(file, sample_offsets_);
  if (StoredEmbeddings::are_in(*file)) embeddings_.emplace(file, sample_offsets_);
}

SampleImages TokenFile::images(std::int64_t sample) const {
  SampleImages images = images_ ? images_->of_sample(sample) : SampleImages();
  if (embeddings_) images.embeddings = embeddings_->of_sample(sample);
  return images;
}

std::vector<std::uint8_t> TokenFile::loss_mask(std::int64_t first, std::int64_t last) const {
  const auto* values = loss_mask_.const_data_ptr<std::uint8_t>();
  std::vector<std::uint8_t> mask(values + first, values + last);
  for (std::size_t i = 0; i < mask.size(); ++i)
    if (mask[i] > 1)
      throw DataError("[data.tokens] {}: entry {} of '{}' is {}; entries are 0 or 1", where_,
                      static_cast<std::size_t>(first) + i, kMaskName, mask[i]);
  return mask;
}

std::vector<std::int32_t> TokenFile::tokens(std::int64_t first, std::int64_t last) const {
  const at::Tensor wide = ids_.slice(0, first, last).to(at::kLong);
  const std::int64_t* values = wide.const_data_ptr<std::int64_t>();
  std::vector<std::int32_t> tokens(static_cast<std::size_t>(wide.numel()));
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    if (values[i] < 0 || values[i] > std::numeric_limits<std::int32_t>::max())
      throw DataError("[data.tokens] {}: entry {} of '{}' is {}, which is not a token id", where_,
                      static_cast<std::size_t>(first) + i, kTokensName, values[i]);
    tokens[i] = static_cast<std::int32_t>(values[i]);
  }
  return tokens;
}

CalibrationSet read_token_file(const std::filesystem::path& path) {
  const TokenFile file(path);
  CalibrationSet set{file.tokens(0, file.sample_offsets().back()), file.sample_offsets()};
  if (file.has_loss_mask()) set.loss_mask = file.loss_mask(0, file.sample_offsets().back());
  if (!file.has_images()) return set;
  for (std::int64_t sample = 0; sample < set.sample_count(); ++sample) set.images.push_back(file.images(sample));
  return set;
}

void write_token_file(const std::filesystem::path& path, const CalibrationSet& set) {
  const auto view = [](const auto& values, at::ScalarType dtype) {
    auto* data = const_cast<void*>(static_cast<const void*>(values.data()));
    return at::from_blob(data, {static_cast<std::int64_t>(values.size())}, at::TensorOptions(dtype));
  };
  std::map<std::string, at::Tensor> tensors = image_tensors(set.images);
  const char* format = tensors.empty() ? kFormat : kFormatWithImages;
  std::vector<GivenEmbeddings> embeddings;
  for (const SampleImages& images : set.images) embeddings.push_back(images.embeddings);
  if (auto given = embedding_tensors(embeddings, set.sample_offsets); !given.empty()) {
    tensors.merge(given);
    format = kFormatWithEmbeddings;
  }
  tensors[kTokensName] = view(set.tokens, at::kInt);
  tensors[kOffsetsName] = view(set.sample_offsets, at::kLong);
  if (!set.loss_mask.empty()) tensors[kMaskName] = view(set.loss_mask, at::kByte);
  checkpoint::write_safetensors(path, tensors,
                                {{"format", format},
                                 {"samples", std::to_string(set.sample_count())},
                                 {"tokens", std::to_string(set.token_count())}});
}

}  // namespace layerpress::data
