#include "layerpress/execution/batch.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <limits>
#include <utility>

namespace layerpress::execution {
namespace {

/// Through pinned memory, so that the copy does not wait for earlier work on a device.
at::Tensor sent(const at::Tensor& x, at::Device device) {
  return device.is_cpu() ? x : x.pin_memory().to(device, /*non_blocking=*/true);
}

}  // namespace

void Batch::count_only(const std::vector<std::uint8_t>& mask) {
  std::vector<std::int64_t> places;
  for (std::size_t i = 0; i < mask.size(); ++i)
    if (mask[i] != 0) places.push_back(static_cast<std::int64_t>(i));
  counted = at::tensor(places, at::kLong);
  counted_tokens = counted.numel();
}

at::Tensor Batch::counted_positions() const {
  at::Tensor positions = at::empty({tokens()}, at::kLong);
  auto* place = positions.data_ptr<std::int64_t>();
  for (std::size_t i = 0; i + 1 < offsets.size(); ++i)
    for (std::int64_t t = 0; t < offsets[i + 1] - offsets[i]; ++t) *place++ = t;
  return positions;
}

at::Tensor BatchContext::token_ids() const { return sent(batch_.token_ids, placement_.device); }

at::Tensor BatchContext::positions() const {
  return sent(batch_.positions.defined() ? batch_.positions : batch_.counted_positions(), placement_.device);
}

float BatchContext::least_score(graph::ValueId routing, std::int64_t expert) const {
  if (surveys_ != nullptr)
    if (const auto survey = surveys_->find(routing); survey != surveys_->end())
      return survey->second.least_score(expert);
  return std::numeric_limits<float>::infinity();
}

const BatchContext::Angles& BatchContext::angles(std::int64_t index) {
  const auto known = angles_.find(index);
  if (known != angles_.end()) return known->second;
  const graph::RopeTable& table = graph_.rope_tables.at(index);

  // Samples with the same frequencies share their rows; a table is as long as its longest sample.
  struct Part {
    std::int64_t length = 0;
    std::int64_t first_row = 0;
  };
  std::map<std::vector<double>, Part> parts;
  std::vector<std::map<std::vector<double>, Part>::iterator> part_of_sample;
  for (std::size_t i = 0; i + 1 < batch_.offsets.size(); ++i) {
    const std::int64_t length = batch_.offsets[i + 1] - batch_.offsets[i];
    const auto part = parts.try_emplace(table.frequencies_for(length)).first;
    part->second.length = std::max(part->second.length, length);
    part_of_sample.push_back(part);
  }
  std::int64_t rows = 0;
  for (auto& [frequencies, part] : parts) {
    part.first_row = rows;
    rows += part.length;
  }
  std::vector<at::Tensor> cosines, sines;
  for (const auto& [frequencies, part] : parts) {
    const RotaryTables::Table own = rotary_tables_.get(table, frequencies, part.length, placement_);
    cosines.push_back(own.cosine.narrow(0, 0, part.length));
    sines.push_back(own.sine.narrow(0, 0, part.length));
  }
  at::Tensor places = at::empty({batch_.tokens()}, at::kLong);
  auto* row = places.data_ptr<std::int64_t>();
  for (std::size_t i = 0; i + 1 < batch_.offsets.size(); ++i)
    for (std::int64_t position = 0; position < batch_.offsets[i + 1] - batch_.offsets[i]; ++position)
      *row++ = part_of_sample[i]->second.first_row + position;
  const auto joined = [](const std::vector<at::Tensor>& some) {
    return some.size() == 1 ? some.front() : at::cat(some);
  };
  Angles angles{joined(cosines), joined(sines), sent(places, placement_.device)};
  return angles_.emplace(index, std::move(angles)).first->second;
}

}  // namespace layerpress::execution
