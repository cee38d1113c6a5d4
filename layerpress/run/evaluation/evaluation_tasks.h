#pragma once

#include "layerpress/evaluate.h"

namespace layerpress::run {

/// Throws UsageError for options of tasks that contradict each other.
void check_tasks(const EvaluateOptions& options);

/// Runs tasks of lm-evaluation-harness on the model, and on the reference if there is one, in a helper. Returns
/// Evaluation::tasks. Throws IoError with the helper's message, which says how to fetch data that is missing.
Json run_tasks(const EvaluateOptions& options, const RunControl& control);

}  // namespace layerpress::run
