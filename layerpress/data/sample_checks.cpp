#include "layerpress/data/sample_checks.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <string>

#include "layerpress/base/error.h"

namespace layerpress::data {

void check_options(const DatasetOptions& options) {
  if (options.dataset.empty()) throw UsageError("[data] --dataset is missing");
  if (options.num_samples < 1) throw UsageError("[data] --num-samples must be at least 1, got {}", options.num_samples);
  if (options.max_seq_length < 1)
    throw UsageError("[data] --max-seq-length must be at least 1, got {}", options.max_seq_length);
}

void report_count(const SampleCount& count, const DatasetOptions& options, const RunControl& control) {
  const std::string skipped = count.skipped_empty == 0 ? ""
                              : count.skipped_empty == 1
                                  ? " (one row without tokens was skipped)"
                                  : fmt::format(" ({} rows without tokens were skipped)", count.skipped_empty);
  if (count.samples == 0 && options.may_be_empty) return;
  if (count.samples == 0 && options.concatenate)
    throw DataError("[data] {}, split {}: all rows together give fewer than {} tokens{}; lower --max-seq-length",
                    options.dataset, options.split, options.max_seq_length, skipped);
  if (count.samples == 0)
    throw DataError("[data] {}, split {}: gives no samples{}; pass another dataset or split", options.dataset,
                    options.split, skipped);
  // A token file has as many as were asked for when it was made.
  const bool is_chosen =
      options.num_samples != DatasetOptions().num_samples || !options.dataset.ends_with(".safetensors");
  const bool means_all = options.num_samples >= std::numeric_limits<std::int32_t>::max();
  if (count.samples < options.num_samples && is_chosen && !means_all)
    control.message(LogLevel::kWarning,
                    fmt::format("[data] {}: {} samples were requested, but only {} exist; all are used{}",
                                options.dataset, options.num_samples, count.samples, skipped));
}

void check_loss_mask(const CalibrationSet& set, const DatasetOptions& options) {
  if (options.use_loss_mask && set.sample_count() > 0 && set.counted_tokens() == 0 && !options.may_be_empty)
    throw DataError(
        "[data.loss_mask] {}: the loss mask excludes every token, so nothing can be calibrated; check the assistant's "
        "messages and loss_mask, and raise --max-seq-length if it cuts them off",
        options.dataset);
}

void check_vocabulary(const CalibrationSet& set, const std::vector<std::int64_t>* numbers, std::int64_t vocabulary_size,
                      const DatasetOptions& options) {
  const auto outside = std::find_if(set.tokens.begin(), set.tokens.end(),
                                    [&](std::int32_t token) { return token < 0 || token >= vocabulary_size; });
  if (outside == set.tokens.end()) return;
  const auto position = static_cast<std::int64_t>(outside - set.tokens.begin());
  const auto next = std::upper_bound(set.sample_offsets.begin(), set.sample_offsets.end(), position);
  const std::int64_t sample = next - set.sample_offsets.begin() - 1;
  throw DataError(
      "[data] {}: sample {} (from 1{}) has token id {}, but the model's vocabulary has {} tokens; prepare the data "
      "with this model's tokenizer",
      options.dataset, 1 + (numbers == nullptr ? sample : numbers->at(static_cast<std::size_t>(sample))),
      options.shuffle ? ", as they are shuffled" : "", *outside, vocabulary_size);
}

}  // namespace layerpress::data
