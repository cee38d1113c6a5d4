#include "layerpress/data/sample_selection.h"

#include <algorithm>
#include <limits>
#include <optional>

#include "layerpress/data/row_slice.h"

namespace layerpress::data {
namespace {

/// The rows of the slice, one after the other, in the order in which they are to be taken.
class RowOrder {
 public:
  RowOrder(TokenRows& rows, const DatasetOptions& options) : rows_(rows), slice_(parse_row_slice(options.split)) {
    if (!options.shuffle) return;
    const std::int64_t stop = std::min(slice_.stop.value_or(rows.count()), rows.count());
    shuffled_ = shuffled_order(std::max<std::int64_t>(stop - slice_.start, 0), options.seed);
  }

  std::optional<std::vector<std::int32_t>> next() {
    const std::int64_t position = position_++;
    if (shuffled_) {
      if (position >= static_cast<std::int64_t>(shuffled_->size())) return std::nullopt;
      return rows_.row(slice_.start + (*shuffled_)[static_cast<std::size_t>(position)]);
    }
    constexpr auto kNoLimit = std::numeric_limits<std::int64_t>::max();
    if (position >= slice_.stop.value_or(kNoLimit) - slice_.start) return std::nullopt;
    return rows_.row(slice_.start + position);
  }

 private:
  TokenRows& rows_;
  RowSlice slice_;
  std::optional<std::vector<std::int64_t>> shuffled_;
  std::int64_t position_ = 0;
};

void append_row(CalibrationSet& set, const std::vector<std::int32_t>& row, std::int64_t max_seq_length) {
  const auto length = std::min(static_cast<std::int64_t>(row.size()), max_seq_length);
  set.tokens.insert(set.tokens.end(), row.begin(), row.begin() + length);
  set.sample_offsets.push_back(static_cast<std::int64_t>(set.tokens.size()));
}

/// The tokens behind the last sample wait for those of the next row.
void append_to_stream(CalibrationSet& set, const std::vector<std::int32_t>& row, const DatasetOptions& options) {
  set.tokens.insert(set.tokens.end(), row.begin(), row.end());
  const auto available = static_cast<std::int64_t>(set.tokens.size());
  while (available - set.sample_offsets.back() >= options.max_seq_length && set.sample_count() < options.num_samples)
    set.sample_offsets.push_back(set.sample_offsets.back() + options.max_seq_length);
}

}  // namespace

Selection select_samples(TokenRows& rows, const DatasetOptions& options, const RunControl& control) {
  Selection selection;
  CalibrationSet& set = selection.set;
  RowOrder order(rows, options);
  while (set.sample_count() < options.num_samples) {
    control.check_stop();
    const auto row = order.next();
    if (!row) break;
    if (row->empty())
      ++selection.skipped_empty;
    else if (options.concatenate)
      append_to_stream(set, *row, options);
    else
      append_row(set, *row, options.max_seq_length);
  }
  set.tokens.resize(static_cast<std::size_t>(set.token_count()));
  return selection;
}

}  // namespace layerpress::data
