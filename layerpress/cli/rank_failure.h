#pragma once

#include <string>

#include "layerpress/base/error.h"
#include "layerpress/cli/commands.h"
#include "layerpress/distributed.h"

namespace layerpress::cli {

/// Ends a rank's subcommand after an error: of several ranks only one reports it.
[[noreturn]] inline void end_rank(const Distributed& ranks, ErrorKind kind, const std::string& message) {
  if (!ranks.reports_failure()) throw QuietExit{exit_code(kind)};
  const std::string failure = ranks.failure();
  throw Error(kind, failure.empty() ? message : failure);
}

}  // namespace layerpress::cli
