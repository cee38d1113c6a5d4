#pragma once

#include "layerpress/dist/group.h"
#include "layerpress/evaluate.h"
#include "layerpress/oneshot.h"

namespace layerpress::run {

/// Throws if a report that is asked for could not be drawn later: UsageError for a place that cannot be, IoError if this
/// build draws no charts.
void check_report(const OneshotOptions& options);

/// Draws the report on the first rank: the one that is asked for, or else one beside the summary. IoError if the former
/// fails, a warning if the latter does: the output stays.
void write_report(const OneshotOptions& options, const dist::Group& group, const RunControl& control,
                  const OneshotSummary& summary);

/// Throws IoError if add_to_report would fail: there is no such page.
void check_report(const EvaluateOptions& options, const RunControl& control);

/// Draws a run's page again, with the figures of an evaluation.
void add_to_report(const EvaluateOptions& options, const Evaluation& evaluation, const RunControl& control);

}  // namespace layerpress::run
