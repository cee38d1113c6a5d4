#pragma once

#include <CLI/CLI.hpp>
#include <functional>

#include "layerpress/base/error.h"
#include "layerpress/base/progress.h"

namespace layerpress::cli {

/// Options of every subcommand.
struct CommonOptions {
  bool no_progress = false;
  std::string log_level = "info";
  std::string command_line;  ///< as it was typed, quoted for a shell
};

/// What a subcommand runs after parsing; returns the exit code.
using Action = std::function<int(const RunControl&)>;

/// Thrown by an action that failed without anything to say: another process says it.
struct QuietExit {
  int code;
};

/// 2 for what was asked wrongly, 130 for what was stopped, 1 for the rest.
inline int exit_code(ErrorKind kind) {
  if (kind == ErrorKind::kUsage) return 2;
  return kind == ErrorKind::kInterrupted ? 130 : 1;
}

// Each adds its subcommand to `app` and sets `action` when that one is chosen.
void add_oneshot(CLI::App& app, CommonOptions& common, Action& action);
void add_eval(CLI::App& app, CommonOptions& common, Action& action);
void add_inspect(CLI::App& app, CommonOptions& common, Action& action);
void add_prepare(CLI::App& app, CommonOptions& common, Action& action);

}  // namespace layerpress::cli
