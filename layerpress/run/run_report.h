#pragma once

#include "layerpress/dist/group.h"
#include "layerpress/oneshot.h"

namespace layerpress::run {

/// Throws IoError if a report that is asked for could not be drawn later: a package is missing, or its folder.
void check_report(const OneshotOptions& options, const dist::Group& group, const RunControl& control);

/// Draws the report that is asked for, on the first rank. IoError if that fails: the output stays.
void write_report(const OneshotOptions& options, const dist::Group& group, const RunControl& control,
                  const OneshotSummary& summary);

}  // namespace layerpress::run
