#pragma once

#include <CLI/CLI.hpp>
#include <functional>

#include "layerpress/base/error.h"
#include "layerpress/base/progress.h"

namespace layerpress::cli {

/// Options of all subcommands.
struct CommonOptions {
  bool no_progress = false;
  std::string log_level = "info";
  std::string command_line;  ///< as typed, quoted for a shell
};

/// Runs a subcommand after parsing; returns the exit code.
using Action = std::function<int(const RunControl&)>;

/// Thrown by an action that fails without a message because another process reports the failure.
struct QuietExit {
  int code;
};

/// 2 for usage errors, 130 for interrupted work, 1 for all others.
inline int exit_code(ErrorKind kind) {
  if (kind == ErrorKind::kUsage) return 2;
  return kind == ErrorKind::kInterrupted ? 130 : 1;
}

// Each function adds its subcommand to `app` and sets `action` when the subcommand is chosen.
void add_oneshot(CLI::App& app, CommonOptions& common, Action& action);
void add_eval(CLI::App& app, CommonOptions& common, Action& action);
void add_inspect(CLI::App& app, CommonOptions& common, Action& action);
void add_prepare(CLI::App& app, CommonOptions& common, Action& action);

}  // namespace layerpress::cli
