#pragma once

#include "layerpress/dist/group.h"
#include "layerpress/evaluate.h"
#include "layerpress/oneshot.h"

namespace layerpress::run {

/// Throws IoError if a report that is asked for could not be drawn later: a package is missing, or its folder.
void check_report(const OneshotOptions& options, const dist::Group& group, const RunControl& control);

/// Draws the report that is asked for, on the first rank. IoError if that fails: the output stays.
void write_report(const OneshotOptions& options, const dist::Group& group, const RunControl& control,
                  const OneshotSummary& summary);

/// Throws IoError if add_to_report would fail: there is no such page.
void check_report(const EvaluateOptions& options, const RunControl& control);

/// Draws a run's page again, with the figures of an evaluation.
void add_to_report(const EvaluateOptions& options, const Evaluation& evaluation, const RunControl& control);

}  // namespace layerpress::run
