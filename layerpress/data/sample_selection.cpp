#include "layerpress/data/sample_selection.h"

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <limits>
#include <optional>
#include <utility>

#include "layerpress/base/error.h"

namespace layerpress::data {
namespace {

/// Tokens after the last complete sample wait for those of the next row.
void append_to_stream(CalibrationSet& set, const SelectedRow& row, const DatasetOptions& options) {
  set.tokens.insert(set.tokens.end(), row.tokens.begin(), row.tokens.end());
  set.loss_mask.insert(set.loss_mask.end(), row.loss_mask.begin(), row.loss_mask.end());
  const auto available = static_cast<std::int64_t>(set.tokens.size());
  while (available - set.sample_offsets.back() >= options.max_seq_length && set.sample_count() < options.num_samples)
    set.sample_offsets.push_back(set.sample_offsets.back() + options.max_seq_length);
}

void check_joinable(const TokenRows& rows, const DatasetOptions& options) {
  if (options.concatenate && rows.has_images())
    throw DataError("[data] {}: --concatenate would separate the samples' images from their text; leave it out",
                    options.dataset);
  if (options.use_loss_mask && rows.has_images())
    throw DataError("[data] {}: --use-loss-mask does not support samples with images yet; leave it out",
                    options.dataset);
}

}  // namespace

Selection select_samples(TokenRows& rows, const DatasetOptions& options, const RunControl& control) {
  check_joinable(rows, options);
  Selection selection;
  CalibrationSet& set = selection.set;
  const RowOrder order(rows, options);
  for (std::int64_t position = 0; set.sample_count() < options.num_samples; ++position) {
    control.check_stop();
    const auto row = row_at(rows, order, position, options);
    if (!row) break;
    if (row->tokens.empty())
      ++selection.skipped_empty;
    else if (options.concatenate)
      append_to_stream(set, *row, options);
    else
      append_sample(set, *row, options.max_seq_length);
  }
  set.tokens.resize(static_cast<std::size_t>(set.token_count()));
  if (options.use_loss_mask) set.loss_mask.resize(set.tokens.size());
  return selection;
}

RowPart read_rows(TokenRows& rows, const RowOrder& order, const Positions& positions, const DatasetOptions& options,
                  const RunControl& control) {
  check_joinable(rows, options);
  const std::int64_t limit = options.concatenate ? std::numeric_limits<std::int64_t>::max() : options.max_seq_length;
  RowPart part;
  for (std::int64_t position = positions.first; position < positions.last; ++position) {
    control.check_stop();
    const auto row = row_at(rows, order, position, options);
    if (!row) break;
    ++part.rows;
    if (!row->tokens.empty()) append_sample(part.set, *row, limit);
  }
  return part;
}

std::optional<SelectedRow> row_at(TokenRows& rows, const RowOrder& order, std::int64_t position,
                                  const DatasetOptions& options) {
  const auto index = order.index(position);
  if (!index) return std::nullopt;
  auto tokens = rows.row(*index);
  if (!tokens) return std::nullopt;
  SelectedRow row{std::move(*tokens)};
  if (options.use_loss_mask) row.loss_mask = rows.loss_mask(*index);
  if (rows.has_images()) row.images = rows.images(*index);
  return row;
}

void append_sample(CalibrationSet& set, const SelectedRow& row, std::int64_t limit) {
  const auto length = std::min(static_cast<std::int64_t>(row.tokens.size()), limit);
  set.tokens.insert(set.tokens.end(), row.tokens.begin(), row.tokens.begin() + length);
  set.sample_offsets.push_back(static_cast<std::int64_t>(set.tokens.size()));
  if (!row.loss_mask.empty())
    set.loss_mask.insert(set.loss_mask.end(), row.loss_mask.begin(), row.loss_mask.begin() + length);
  if (row.images) set.images.push_back(row.images->cut(length));
}

}  // namespace layerpress::data
