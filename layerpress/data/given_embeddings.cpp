#include "layerpress/data/given_embeddings.h"

#include <ATen/ATen.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <set>
#include <utility>

#include "layerpress/base/error.h"

namespace layerpress::data {
namespace {

constexpr const char* kPlaceOffsets = "embedding_offsets";
constexpr const char* kPlaces = "embedding_places";
constexpr const char* kPositions = "positions";
constexpr const char* kGroups = "attention_groups";
constexpr std::int64_t kMostAxes = 16;

std::string values_name(std::int64_t number) { return fmt::format("embeddings.{}", number); }
std::string added_name(std::int64_t number) { return fmt::format("added_embeddings.{}", number); }

bool has_floats(const checkpoint::StoredTensor& tensor, std::size_t dimensions) {
  const bool is_float = tensor.dtype == at::kFloat || tensor.dtype == at::kBFloat16 || tensor.dtype == at::kHalf;
  return is_float && tensor.shape.size() == dimensions;
}

at::Tensor read_integers(const checkpoint::SafetensorsFile& file, const char* name, std::size_t dimensions) {
  const auto found = file.tensors().find(name);
  if (found == file.tensors().end() || found->second.dtype != at::kLong || found->second.shape.size() != dimensions)
    throw DataError(
        "[data.images] {}: '{}' must be I64 with {} dimensions; make the file again with `layerpress prepare`",
        file.path().string(), name, dimensions);
  return file.tensor(name);
}

}  // namespace

GivenEmbeddings GivenEmbeddings::cut(std::int64_t length) const {
  if (!are_there()) return {};
  const std::int64_t count = places.lt(length).sum().item<std::int64_t>();
  return {places.slice(0, 0, count), values.slice(0, 0, count),
          positions.defined() ? positions.slice(1, 0, length) : at::Tensor(),
          added.defined() ? added.slice(0, 0, count) : at::Tensor(),
          groups.defined() ? groups.slice(0, 0, length) : at::Tensor()};
}

bool StoredEmbeddings::are_in(const checkpoint::SafetensorsFile& file) { return file.contains(kPlaceOffsets); }

StoredEmbeddings::StoredEmbeddings(std::shared_ptr<const checkpoint::SafetensorsFile> file,
                                   std::vector<std::int64_t> sample_offsets)
    : file_(std::move(file)), sample_offsets_(std::move(sample_offsets)) {
  const std::string where = file_->path().string();
  const at::Tensor offsets = read_integers(*file_, kPlaceOffsets, 1);
  places_ = read_integers(*file_, kPlaces, 1);
  const auto* values = offsets.const_data_ptr<std::int64_t>();
  offsets_.assign(values, values + offsets.numel());
  if (offsets_.size() != sample_offsets_.size() || offsets_.front() != 0 || offsets_.back() != places_.numel() ||
      !std::is_sorted(offsets_.begin(), offsets_.end()))
    throw DataError("[data.images] {}: '{}' must increase from 0 to {} in {} steps, one per sample", where,
                    kPlaceOffsets, places_.numel(), sample_offsets_.size() - 1);
  if (file_->contains(kPositions)) {
    positions_ = read_integers(*file_, kPositions, 2);
    if (positions_.size(0) < 1 || positions_.size(0) > kMostAxes || positions_.size(1) != sample_offsets_.back())
      throw DataError("[data.images] {}: '{}' is [{}, {}] for {} tokens", where, kPositions, positions_.size(0),
                      positions_.size(1), sample_offsets_.back());
  }
  if (file_->contains(kGroups)) {
    groups_ = read_integers(*file_, kGroups, 1);
    if (groups_.numel() != sample_offsets_.back())
      throw DataError("[data.images] {}: '{}' is [{}] for {} tokens", where, kGroups, groups_.numel(),
                      sample_offsets_.back());
  }
  std::int64_t number = 0, features = -1, layers = -1;
  for (std::size_t sample = 0; sample + 1 < offsets_.size(); ++sample) {
    if (groups_.defined()) check_groups(sample);
    numbers_.push_back(number);
    if (offsets_[sample] == offsets_[sample + 1]) continue;
    check_places(sample);
    check_values(sample, features, layers);
    ++number;
  }
}

void StoredEmbeddings::check_places(std::size_t sample) const {
  const auto* places = places_.const_data_ptr<std::int64_t>();
  std::int64_t before = -1;
  for (std::int64_t i = offsets_[sample]; i < offsets_[sample + 1]; before = places[i++])
    if (places[i] <= before || places[i] >= sample_offsets_[sample + 1] - sample_offsets_[sample])
      throw DataError("[data.images] {}: sample {} (from 1): '{}' must increase within the sample",
                      file_->path().string(), sample + 1, kPlaces);
}

void StoredEmbeddings::check_groups(std::size_t sample) const {
  const auto* groups = groups_.const_data_ptr<std::int64_t>();
  const bool has_images = offsets_[sample] < offsets_[sample + 1];
  std::set<std::int64_t> ended;
  std::int64_t before = -1;
  for (std::int64_t i = sample_offsets_[sample]; i < sample_offsets_[sample + 1]; before = groups[i++]) {
    if (groups[i] != before && before >= 0) ended.insert(before);
    if (groups[i] < -1 || (groups[i] >= 0 && !has_images) || ended.count(groups[i]) != 0)
      throw DataError(
          "[data.images] {}: sample {} (from 1): '{}' is not -1 or, with images, the number of a group of consecutive "
          "tokens",
          file_->path().string(), sample + 1, kGroups);
  }
}

void StoredEmbeddings::check_values(std::size_t sample, std::int64_t& features, std::int64_t& layers) const {
  const std::string name = values_name(numbers_.back()), added = added_name(numbers_.back());
  const auto found = file_->tensors().find(name);
  const std::int64_t count = offsets_[sample + 1] - offsets_[sample];
  const auto fits = [&](const checkpoint::StoredTensor& spec) {
    return has_floats(spec, 2) && spec.shape[0] == count && spec.shape[1] > 0 &&
           (features < 0 || spec.shape[1] == features);
  };
  if (found == file_->tensors().end() || !fits(found->second))
    throw DataError(
        "[data.images] {}: '{}' must be floats [{}, features]; make the file again with `layerpress prepare`",
        file_->path().string(), name, count);
  features = found->second.shape[1];
  const auto more = file_->tensors().find(added);
  if (layers < 0) layers = more != file_->tensors().end() && has_floats(more->second, 3) ? more->second.shape[1] : 0;
  if (more == file_->tensors().end() ? layers > 0
                                     : !has_floats(more->second, 3) || layers < 1 ||
                                           more->second.shape != std::vector<std::int64_t>{count, layers, features})
    throw DataError(
        "[data.images] {}: '{}' must be floats [{}, layers, {}], with the same layers in all samples; make the file "
        "again with `layerpress prepare`",
        file_->path().string(), added, count, features);
}

GivenEmbeddings StoredEmbeddings::of_sample(std::int64_t sample) const {
  const auto index = static_cast<std::size_t>(sample);
  const std::int64_t first = offsets_.at(index), last = offsets_.at(index + 1);
  if (first == last) return {};
  const std::int64_t number = numbers_.at(index);
  return {places_.slice(0, first, last), file_->tensor(values_name(number)),
          positions_.defined() ? positions_.slice(1, sample_offsets_[index], sample_offsets_[index + 1]) : at::Tensor(),
          file_->contains(added_name(number)) ? file_->tensor(added_name(number)) : at::Tensor(),
          groups_.defined() ? groups_.slice(0, sample_offsets_[index], sample_offsets_[index + 1]) : at::Tensor()};
}

std::map<std::string, at::Tensor> embedding_tensors(const std::vector<GivenEmbeddings>& samples,
                                                    const std::vector<std::int64_t>& sample_offsets) {
  std::map<std::string, at::Tensor> tensors;
  std::vector<std::int64_t> offsets{0};
  std::vector<at::Tensor> places, positions, groups;
  std::int64_t axes = 0;
  bool grouped = false;
  for (const GivenEmbeddings& sample : samples) {
    if (sample.positions.defined()) axes = sample.positions.size(0);
    grouped = grouped || sample.groups.defined();
  }
  for (std::size_t i = 0; i < samples.size(); ++i) {
    const GivenEmbeddings& sample = samples[i];
    if (sample.are_there()) {
      const auto number = static_cast<std::int64_t>(places.size());
      tensors[values_name(number)] = sample.values;
      if (sample.added.defined()) tensors[added_name(number)] = sample.added;
      places.push_back(sample.places);
    }
    offsets.push_back(offsets.back() + (sample.are_there() ? sample.places.numel() : 0));
    const std::int64_t tokens = sample_offsets.at(i + 1) - sample_offsets.at(i);
    positions.push_back(sample.positions.defined() ? sample.positions : at::arange(tokens).expand({axes, tokens}));
    groups.push_back(sample.groups.defined() ? sample.groups : at::full({tokens}, -1, at::kLong));
  }
  if (places.empty()) return {};
  tensors[kPlaceOffsets] = at::tensor(offsets, at::kLong);
  tensors[kPlaces] = at::cat(places);
  if (axes > 0) tensors[kPositions] = at::cat(positions, 1);
  if (grouped) tensors[kGroups] = at::cat(groups);
  return tensors;
}

}  // namespace layerpress::data
