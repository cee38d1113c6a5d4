#pragma once

#include "layerpress/base/error.h"
#include "layerpress/base/progress.h"
#include "layerpress/cli/command_line.h"

namespace layerpress::cli {

/// Thrown by a subcommand of one rank when another rank reports the failure.
struct QuietExit {
  int code;
};

/// 2 for a usage error, 130 for an interruption, 1 for the rest.
inline int exit_code(ErrorKind kind) {
  if (kind == ErrorKind::kUsage) return 2;
  return kind == ErrorKind::kInterrupted ? 130 : 1;
}

/// Removes what shows the progress, so that other text can follow.
inline void end_progress(const RunControl& control) {
  if (control.events != nullptr) control.events->on_step(0, 0, "");
}

// Each runs its subcommand and returns the exit code.
int run_oneshot(const CommandLine& line, const RunControl& control);
int run_eval(const CommandLine& line, const RunControl& control);
int run_inspect(const CommandLine& line, const RunControl& control);
int run_verify(const CommandLine& line, const RunControl& control);
int run_prepare(const CommandLine& line, const RunControl& control);

}  // namespace layerpress::cli
