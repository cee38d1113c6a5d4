#include "layerpress/data/sample_selection.h"

#include <algorithm>
#include <limits>
#include <optional>

namespace layerpress::data {
namespace {

std::optional<std::vector<std::int32_t>> row_at(TokenRows& rows, const RowOrder& order, std::int64_t position) {
  const auto index = order.index(position);
  return index ? rows.row(*index) : std::nullopt;
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
  const RowOrder order(rows, options);
  for (std::int64_t position = 0; set.sample_count() < options.num_samples; ++position) {
    control.check_stop();
    const auto row = row_at(rows, order, position);
    if (!row) break;
    if (row->empty())
      ++selection.skipped_empty;
    else if (options.concatenate)
      append_to_stream(set, *row, options);
    else
      append_sample(set, *row, options.max_seq_length);
  }
  set.tokens.resize(static_cast<std::size_t>(set.token_count()));
  return selection;
}

RowPart read_rows(TokenRows& rows, const RowOrder& order, const Positions& positions, const DatasetOptions& options,
                  const RunControl& control) {
  const std::int64_t limit = options.concatenate ? std::numeric_limits<std::int64_t>::max() : options.max_seq_length;
  RowPart part;
  for (std::int64_t position = positions.first; position < positions.last; ++position) {
    control.check_stop();
    const auto row = row_at(rows, order, position);
    if (!row) break;
    ++part.rows;
    if (!row->empty()) append_sample(part.set, *row, limit);
  }
  return part;
}

void append_sample(CalibrationSet& set, const std::vector<std::int32_t>& tokens, std::int64_t limit) {
  const auto length = std::min(static_cast<std::int64_t>(tokens.size()), limit);
  set.tokens.insert(set.tokens.end(), tokens.begin(), tokens.begin() + length);
  set.sample_offsets.push_back(static_cast<std::int64_t>(set.tokens.size()));
}

}  // namespace layerpress::data
