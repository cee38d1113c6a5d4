#pragma once

#include "layerpress/dist/group.h"
#include "layerpress/oneshot.h"

namespace layerpress::run {

/// Fetches the model if that is asked for, once per machine. Collective.
void fetch_model(const OneshotOptions& options, dist::Group& group, const RunControl& control);

/// Throws if an upload that is asked for would be refused: UsageError, or IoError if the hub does not know the user.
void check_upload(const OneshotOptions& options, const dist::Group& group, const RunControl& control);

/// Uploads a complete output if that is asked for, from the first rank. IoError if the hub refuses: the output stays.
/// Collective.
void upload(const OneshotOptions& options, dist::Group& group, const RunControl& control, OneshotSummary& summary);

}  // namespace layerpress::run
