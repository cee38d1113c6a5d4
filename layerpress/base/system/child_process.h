#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "layerpress/base/progress.h"

namespace layerpress {

/// The result of a child process. Of each stream, the last 64 KiB are kept.
struct ChildResult {
  int exit_code = 0;  ///< 128 + signal number if a signal ended it
  std::string output;
  std::string errors;
};

/// A program that is started as a child.
struct ChildProgram {
  std::vector<std::string> arguments;  ///< the program first, looked up in PATH
  std::string input{};                 ///< what it is sent
  std::string hint{};                  ///< ends the message if it cannot be started
  bool gets_hub_token = false;         ///< of this process's environment, see child_environment.h
};

/// Runs a program without a shell, with child_environment, and waits until it ends. A stop request ends the child (SIGTERM, two
/// seconds later SIGKILL) and throws InterruptedError. Throws DataError if the program cannot be started. `on_line` is given each
/// line of the output as it comes.
ChildResult run_child(const ChildProgram& program, const RunControl& control,
                      const std::function<void(std::string_view)>& on_line = {});

/// The text after `error: ` in the last of these lines that begins with it, or empty if there is none.
std::string reported_error(const std::string& errors);

/// What a failed helper of ours says: the text after `error: ` in the last line that begins with it, else `where`, the
/// exit code and the last line.
std::string reported_error(const ChildResult& result, const std::string& where);

}  // namespace layerpress
