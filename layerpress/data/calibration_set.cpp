#include "layerpress/data/calibration_set.h"

#include <numeric>
#include <utility>

#include "layerpress/base/error.h"

namespace layerpress::data {
namespace {

/// splitmix64 (Steele, Lea, Flood 2014: Fast splittable pseudorandom number generators).
class SplitMix64 {
 public:
  explicit SplitMix64(std::uint64_t seed) : state_(seed) {}

  std::uint64_t next() {
    state_ += 0x9E3779B97F4A7C15u;
    std::uint64_t value = state_;
    value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9u;
    value = (value ^ (value >> 27)) * 0x94D049BB133111EBu;
    return value ^ (value >> 31);
  }

 private:
  std::uint64_t state_;
};

}  // namespace

std::int64_t CalibrationSet::counted_tokens() const {
  return loss_mask.empty() ? token_count() : std::accumulate(loss_mask.begin(), loss_mask.end(), std::int64_t{0});
}

void CalibrationSet::append(const CalibrationSet& samples) {
  const std::int64_t end = token_count();
  const auto before = static_cast<std::size_t>(sample_count());
  tokens.insert(tokens.end(), samples.tokens.begin(), samples.tokens.end());
  loss_mask.insert(loss_mask.end(), samples.loss_mask.begin(), samples.loss_mask.end());
  for (auto offset = samples.sample_offsets.begin() + 1; offset != samples.sample_offsets.end(); ++offset)
    sample_offsets.push_back(end + *offset);
  if (samples.images.empty() && images.empty()) return;
  images.resize(before);
  images.insert(images.end(), samples.images.begin(), samples.images.end());
  images.resize(static_cast<std::size_t>(sample_count()));
}

std::vector<std::int64_t> CalibrationSet::take_shorter(std::int64_t least) {
  std::vector<std::int64_t> taken;
  CalibrationSet left;
  for (std::int64_t i = 0; i < sample_count(); ++i) {
    const auto place = static_cast<std::size_t>(i);
    const std::int64_t begin = sample_offsets[place], end = sample_offsets[place + 1];
    if (end - begin < least) {
      taken.push_back(places.empty() ? i : places[place]);
      continue;
    }
    left.tokens.insert(left.tokens.end(), tokens.begin() + begin, tokens.begin() + end);
    left.sample_offsets.push_back(static_cast<std::int64_t>(left.tokens.size()));
    if (!images.empty()) left.images.push_back(images[place]);
    if (!loss_mask.empty())
      left.loss_mask.insert(left.loss_mask.end(), loss_mask.begin() + begin, loss_mask.begin() + end);
    if (!places.empty()) left.places.push_back(places[place]);
  }
  if (!taken.empty()) *this = std::move(left);
  return taken;
}

std::vector<BatchRange> pack_batches(const CalibrationSet& set, std::int64_t batch_tokens, std::int64_t image_rows) {
  if (batch_tokens <= 0) throw InternalError("[data.pack] batches of {} tokens", batch_tokens);
  std::vector<BatchRange> batches;
  const auto& offsets = set.sample_offsets;
  std::int64_t images = 0;  // of the last batch
  for (std::int64_t sample = 0; sample < set.sample_count(); ++sample) {
    const auto index = static_cast<std::size_t>(sample);
    const bool fits =
        !batches.empty() &&
        offsets[index + 1] - offsets[static_cast<std::size_t>(batches.back().first_sample)] <= batch_tokens &&
        (images + set.image_count(sample)) * image_rows <= batch_tokens;
    if (!fits) {
      batches.push_back({sample, sample});
      images = 0;
    }
    images += set.image_count(sample);
    batches.back().last_sample = sample + 1;
  }
  return batches;
}

std::vector<std::int64_t> shuffled_order(std::int64_t n, std::uint64_t seed) {
  std::vector<std::int64_t> order(static_cast<std::size_t>(n));
  std::iota(order.begin(), order.end(), std::int64_t{0});
  SplitMix64 random(seed);
  for (std::size_t i = order.size(); i-- > 1;) std::swap(order[i], order[random.next() % (i + 1)]);
  return order;
}

}  // namespace layerpress::data
