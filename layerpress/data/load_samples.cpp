#include "layerpress/data/load_samples.h"

#include <utility>

#include "layerpress/data/helper.h"
#include "layerpress/data/sample_checks.h"
#include "layerpress/data/sample_selection.h"
#include "layerpress/data/token_rows.h"

namespace layerpress::data {

CalibrationSet load_samples(const DatasetOptions& options, const std::filesystem::path& model_directory,
                            std::int64_t vocabulary_size, const RunControl& control) {
  check_options(options);
  const auto rows = open_token_rows(options.dataset);
  Selection selection;
  if (rows) {
    selection = select_samples(*rows, options, control);
  } else if (options.may_be_empty && !options.concatenate) {
    // Requested by position, because then missing rows are not an error.
    RowPart part = prepare_rows_with_helper(options, model_directory, {0, options.num_samples}, control);
    selection = {std::move(part.set), 0};
  } else {
    selection = prepare_with_helper(options, model_directory, control);
  }
  report_count({selection.set.sample_count(), selection.skipped_empty}, options, control);
  check_loss_mask(selection.set, options);
  check_vocabulary(selection.set, nullptr, vocabulary_size, options);
  return std::move(selection.set);
}

}  // namespace layerpress::data
