#include "layerpress/data/load_samples.h"

#include <algorithm>
#include <utility>

#include "layerpress/base/error.h"
#include "layerpress/data/helper.h"
#include "layerpress/data/sample_selection.h"
#include "layerpress/data/token_rows.h"

namespace layerpress::data {
namespace {

void check_options(const DatasetOptions& options) {
  if (options.dataset.empty()) throw UsageError("[data] no dataset is named; pass --dataset");
  if (options.num_samples < 1)
    throw UsageError("[data] --num-samples is {}; at least 1 is needed", options.num_samples);
  if (options.max_seq_length < 1)
    throw UsageError("[data] --max-seq-length is {}; at least 1 is needed", options.max_seq_length);
}

void report_count(const Selection& selection, const DatasetOptions& options, const RunControl& control) {
  const std::int64_t count = selection.set.sample_count();
  const std::string skipped = selection.skipped_empty == 0
                                  ? ""
                                  : fmt::format(" ({} rows without tokens were skipped)", selection.skipped_empty);
  if (count == 0 && options.concatenate)
    throw DataError("[data] {}, split {}: all rows together give fewer than {} tokens{}; lower --max-seq-length",
                    options.dataset, options.split, options.max_seq_length, skipped);
  if (count == 0)
    throw DataError("[data] {}, split {}: gives no samples{}; pass another dataset or split", options.dataset,
                    options.split, skipped);
  if (count < options.num_samples)
    control.message(LogLevel::kWarning,
                    fmt::format("[data] {}: {} samples were asked for, {} are there and all are used{}",
                                options.dataset, options.num_samples, count, skipped));
}

void check_vocabulary(const CalibrationSet& set, std::int64_t vocabulary_size, const std::string& dataset) {
  const auto outside = std::find_if(set.tokens.begin(), set.tokens.end(),
                                    [&](std::int32_t token) { return token < 0 || token >= vocabulary_size; });
  if (outside == set.tokens.end()) return;
  const auto position = static_cast<std::int64_t>(outside - set.tokens.begin());
  const auto next = std::upper_bound(set.sample_offsets.begin(), set.sample_offsets.end(), position);
  throw DataError(
      "[data] {}: sample {} (from 1) holds token id {}, the model's vocabulary has {}; prepare the data with "
      "this model's tokenizer",
      dataset, next - set.sample_offsets.begin(), *outside, vocabulary_size);
}

}  // namespace

CalibrationSet load_samples(const DatasetOptions& options, const std::filesystem::path& model_directory,
                            std::int64_t vocabulary_size, const RunControl& control) {
  check_options(options);
  const auto rows = open_token_rows(options.dataset);
  Selection selection =
      rows ? select_samples(*rows, options, control) : prepare_with_helper(options, model_directory, control);
  report_count(selection, options, control);
  check_vocabulary(selection.set, vocabulary_size, options.dataset);
  return std::move(selection.set);
}

}  // namespace layerpress::data
