#pragma once

#include <string>

#include "layerpress/evaluate.h"
#include "layerpress/inspect.h"
#include "layerpress/oneshot.h"
#include "layerpress/prepare.h"
#include "layerpress/verify.h"

namespace layerpress::cli {

/// Options of every subcommand.
struct CommonOptions {
  bool no_progress = false;
  std::string log_level = "info";
  std::string command_line;  ///< as typed, quoted for a shell
};

/// The parsed command line. Parsing needs no libtorch.
struct CommandLine {
  CommonOptions common;
  std::string subcommand;

  OneshotOptions oneshot;
  bool dry_run = false;
  EvaluateOptions eval;
  bool table = false;
  InspectOptions inspect;
  bool architectures = false;
  PrepareOptions prepare;
  VerifyOptions verify;
  bool json = false;  ///< of oneshot, inspect and verify
};

/// Parses the arguments. Where nothing is left to do (--help, --version, or an error, which is said on stderr), sets
/// `code` to the exit code and returns false.
bool parse_command_line(int argc, char** argv, CommandLine& line, int& code);

/// Says an error in one line and returns `code`.
int fail(const std::string& message, int code);

/// The exit code once what was printed is written: `code`, or 1 with a message if a successful command's output is lost. A reader that wants no
/// more of it, as `head` does, is no failure.
int end_output(int code);

}  // namespace layerpress::cli
