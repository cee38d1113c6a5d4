#pragma once

#include "layerpress/base/error.h"
#include "layerpress/data/load_samples.h"

namespace layerpress::run {

/// The data options shared by oneshot and prepare. Throws UsageError for impossible values.
template <typename Options>
data::DatasetOptions dataset_options(const Options& options) {
  if (options.dataset.empty()) throw UsageError("[options] --dataset is missing");
  if (options.num_calibration_samples < 1) throw UsageError("[options] --num-calibration-samples must be positive");
  if (options.max_seq_length < 1) throw UsageError("[options] --max-seq-length must be positive");
  return {.dataset = options.dataset,
          .split = options.dataset_split,
          .text_column = options.text_column,
          .num_samples = options.num_calibration_samples,
          .max_seq_length = options.max_seq_length,
          .shuffle = options.shuffle,
          .seed = options.seed,
          .concatenate = options.concatenate,
          .use_loss_mask = options.use_loss_mask};
}

/// Warns of options that have no effect: a split's name beside a file, whose rows are one split, and a seed without a shuffle.
/// `draws`: the seed is for something else, too.
void warn_of_unused(const data::DatasetOptions& options, bool draws, const RunControl& control);

}  // namespace layerpress::run
