#include "layerpress/data/sample_images.h"

#include <ATen/ATen.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <utility>

#include "layerpress/base/error.h"

namespace layerpress::data {
namespace {

constexpr const char* kOffsets = "image_offsets";
constexpr const char* kRatios = "aspect_ratio_ids";
constexpr const char* kFilled = "aspect_ratio_mask";
constexpr const char* kMask = "cross_attention_mask";

std::string pixels_name(std::int64_t image) { return fmt::format("pixel_values.{}", image); }

/// Integer tensor `name` with `dimensions` dimensions, as int64 or (masks) uint8.
at::Tensor integers(const checkpoint::SafetensorsFile& file, const char* name, std::size_t dimensions,
                    at::ScalarType dtype) {
  const std::string where = file.path().string();
  if (!file.contains(name))
    throw DataError("[data.images] {}: has images but no tensor '{}'; make it again with `layerpress prepare`", where,
                    name);
  const checkpoint::StoredTensor& spec = file.tensors().at(name);
  if (spec.dtype != dtype || spec.shape.size() != dimensions)
    throw DataError("[data.images] {}: '{}' is {} with {} dimensions; expected {} with {}", where, name,
                    checkpoint::dtype_name(spec.dtype), spec.shape.size(), checkpoint::dtype_name(dtype), dimensions);
  return file.tensor(name);
}

std::vector<std::int64_t> numbers(const at::Tensor& tensor) {
  const auto* values = tensor.const_data_ptr<std::int64_t>();
  return {values, values + tensor.numel()};
}

std::vector<std::int64_t> read_image_offsets(const checkpoint::SafetensorsFile& file, std::size_t samples) {
  std::vector<std::int64_t> offsets = numbers(integers(file, kOffsets, 1, at::kLong));
  const bool fits = offsets.size() == samples + 1 && offsets.front() == 0 && offsets.back() <= 1 << 24 &&
                    std::is_sorted(offsets.begin(), offsets.end());
  if (!fits)
    throw DataError("[data.images] {}: '{}' must increase from 0 in {} steps, one per sample", file.path().string(),
                    kOffsets, samples);
  return offsets;
}

/// The number of leading ones in each row. Only zeros may follow them.
std::vector<std::int64_t> read_filled_tiles(const checkpoint::SafetensorsFile& file, std::int64_t images) {
  const at::Tensor rows = integers(file, kFilled, 2, at::kByte);
  if (rows.size(0) != images || rows.size(1) < 1)
    throw DataError("[data.images] {}: '{}' is {} for {} images", file.path().string(), kFilled,
                    fmt::format("[{}, {}]", rows.size(0), rows.size(1)), images);
  std::vector<std::int64_t> filled;
  for (std::int64_t image = 0; image < images; ++image) {
    const auto* row = rows.const_data_ptr<std::uint8_t>() + image * rows.size(1);
    const auto* end = std::find_if(row, row + rows.size(1), [](std::uint8_t tile) { return tile != 1; });
    if (end == row || std::any_of(end, row + rows.size(1), [](std::uint8_t tile) { return tile != 0; }))
      throw DataError("[data.images] {}: row {} of '{}' must be ones followed by zeros", file.path().string(), image,
                      kFilled);
    filled.push_back(end - row);
  }
  return filled;
}

void check_pixels(const checkpoint::SafetensorsFile& file, std::int64_t image, std::int64_t filled) {
  const std::string name = pixels_name(image);
  if (!file.contains(name))
    throw DataError("[data.images] {}: has no tensor '{}'; make it again with `layerpress prepare`",
                    file.path().string(), name);
  const checkpoint::StoredTensor& spec = file.tensors().at(name);
  const bool is_float = spec.dtype == at::kFloat || spec.dtype == at::kBFloat16 || spec.dtype == at::kHalf;
  if (!is_float || spec.shape.size() != 4 || spec.shape[0] != filled)
    throw DataError("[data.images] {}: '{}' is {} with shape {}; expected floats [{}, channels, height, width]",
                    file.path().string(), name, checkpoint::dtype_name(spec.dtype), fmt::format("{}", spec.shape),
                    filled);
}

}  // namespace

bool StoredImages::are_in(const checkpoint::SafetensorsFile& file) { return file.contains(kOffsets); }

StoredImages::StoredImages(std::shared_ptr<const checkpoint::SafetensorsFile> file,
                           const std::vector<std::int64_t>& sample_offsets)
    : file_(std::move(file)) {
  image_offsets_ = read_image_offsets(*file_, sample_offsets.size() - 1);
  const std::int64_t images = image_offsets_.back();
  aspect_ratios_ = numbers(integers(*file_, kRatios, 1, at::kLong));
  if (std::cmp_not_equal(aspect_ratios_.size(), images))
    throw DataError("[data.images] {}: '{}' has {} entries for {} images", file_->path().string(), kRatios,
                    aspect_ratios_.size(), images);
  filled_tiles_ = read_filled_tiles(*file_, images);
  for (std::int64_t image = 0; image < images; ++image)
    check_pixels(*file_, image, filled_tiles_[static_cast<std::size_t>(image)]);

  mask_ = integers(*file_, kMask, 2, at::kByte);
  mask_offsets_ = {0};
  for (std::size_t i = 0; i + 1 < sample_offsets.size(); ++i) {
    // The factors are at most 2^40 and 2^24: token ids take space in the file, and image counts were checked.
    const std::int64_t rows = (sample_offsets[i + 1] - sample_offsets[i]) * (image_offsets_[i + 1] - image_offsets_[i]);
    if (rows > mask_.size(0) - mask_offsets_.back())
      throw DataError("[data.images] {}: '{}' has {} rows, which end inside sample {} (from 1)", file_->path().string(),
                      kMask, mask_.size(0), i + 1);
    mask_offsets_.push_back(mask_offsets_.back() + rows);
  }
  const std::int64_t tiles = file_->tensors().at(kFilled).shape[1];
  if (mask_offsets_.back() != mask_.size(0) || mask_.size(1) != tiles)
    throw DataError("[data.images] {}: '{}' is [{}, {}]; its samples make [{}, {}]", file_->path().string(), kMask,
                    mask_.size(0), mask_.size(1), mask_offsets_.back(), tiles);
}

SampleImages StoredImages::of_sample(std::int64_t sample) const {
  const auto index = static_cast<std::size_t>(sample);
  const std::int64_t first = image_offsets_.at(index), last = image_offsets_.at(index + 1), count = last - first;
  SampleImages images;
  if (count == 0) return images;
  images.aspect_ratios = {aspect_ratios_.begin() + first, aspect_ratios_.begin() + last};
  for (std::int64_t image = first; image < last; ++image) images.pixels.push_back(file_->tensor(pixels_name(image)));
  images.mask = mask_.slice(0, mask_offsets_[index], mask_offsets_[index + 1]).view({-1, count, mask_.size(1)});
  for (std::int64_t image = 0; image < count; ++image) {
    const at::Tensor of_image = images.mask.select(1, image);
    const std::int64_t filled = filled_tiles_[static_cast<std::size_t>(first + image)];
    if (of_image.gt(1).any().item<bool>() || of_image.slice(1, filled).any().item<bool>())
      throw DataError(
          "[data.images] {}: sample {} (from 1): '{}' is neither 0 nor 1, or 1 for a tile that its image {} "
          "does not fill",
          file_->path().string(), sample + 1, kMask, image + 1);
  }
  return images;
}

std::map<std::string, at::Tensor> image_tensors(const std::vector<SampleImages>& samples) {
  std::map<std::string, at::Tensor> tensors;
  std::vector<std::int64_t> offsets{0}, ratios;
  std::vector<at::Tensor> filled, masks;
  for (const SampleImages& sample : samples) {
    for (const at::Tensor& pixels : sample.pixels) {
      tensors[pixels_name(static_cast<std::int64_t>(filled.size()))] = pixels;
      const std::int64_t tiles = sample.mask.size(2);
      filled.push_back(at::arange(tiles).lt(pixels.size(0)).to(at::kByte));
    }
    if (sample.count() > 0) masks.push_back(sample.mask.reshape({-1, sample.mask.size(2)}));
    ratios.insert(ratios.end(), sample.aspect_ratios.begin(), sample.aspect_ratios.end());
    offsets.push_back(static_cast<std::int64_t>(ratios.size()));
  }
  if (ratios.empty()) return {};
  tensors[kOffsets] = at::tensor(offsets, at::kLong);
  tensors[kRatios] = at::tensor(ratios, at::kLong);
  tensors[kFilled] = at::stack(filled);
  tensors[kMask] = at::cat(masks);
  return tensors;
}

}  // namespace layerpress::data
