#include "layerpress/data/row_order.h"

#include <algorithm>
#include <limits>

namespace layerpress::data {

RowOrder::RowOrder(TokenRows& rows, const DatasetOptions& options) : slice_(parse_row_slice(options.split)) {
  if (!options.shuffle) return;
  const std::int64_t stop = std::min(slice_.stop.value_or(rows.count()), rows.count());
  shuffled_ = shuffled_order(std::max<std::int64_t>(stop - slice_.start, 0), options.seed);
}

std::optional<std::int64_t> RowOrder::index(std::int64_t position) const {
  if (shuffled_) {
    if (position >= static_cast<std::int64_t>(shuffled_->size())) return std::nullopt;
    return slice_.start + (*shuffled_)[static_cast<std::size_t>(position)];
  }
  constexpr auto kNoLimit = std::numeric_limits<std::int64_t>::max();
  if (position >= slice_.stop.value_or(kNoLimit) - slice_.start) return std::nullopt;
  return slice_.start + position;
}

}  // namespace layerpress::data
