#include "layerpress/prepare.h"

#include "layerpress/data/load_samples.h"
#include "layerpress/recipe/open_model.h"

namespace layerpress {

Prepared prepare(const PrepareOptions& options, const RunControl& control) {
  if (options.dataset.empty()) throw UsageError("[options] --dataset is missing");
  if (options.output.empty()) throw UsageError("[options] --output is missing");
  if (options.num_calibration_samples < 1) throw UsageError("[options] --num-calibration-samples must be positive");
  if (options.max_seq_length < 1) throw UsageError("[options] --max-seq-length must be positive");
  const recipe::OpenedModel model = recipe::open_model(options.model);
  const data::CalibrationSet set = data::load_samples({.dataset = options.dataset,
                                                       .split = options.dataset_split,
                                                       .text_column = options.text_column,
                                                       .num_samples = options.num_calibration_samples,
                                                       .max_seq_length = options.max_seq_length,
                                                       .shuffle = options.shuffle,
                                                       .seed = options.seed,
                                                       .concatenate = options.concatenate},
                                                      model.checkpoint->directory(), model.traced.vocab_size, control);
  data::write_token_file(options.output, set);
  return {set.sample_count(), set.token_count()};
}

}  // namespace layerpress
