#pragma once

#include <string>
#include <vector>

#include "layerpress/base/progress.h"

namespace layerpress {

/// The result of a child process. Of each stream, the last 64 KiB are kept.
struct ChildResult {
  int exit_code = 0;  ///< 128 + signal number if a signal ended it
  std::string output;
  std::string errors;
};

/// Runs `arguments` (the program first, looked up in PATH) without a shell, sends it `input` and waits until it ends. A
/// stop request ends the child (SIGTERM, two seconds later SIGKILL) and throws InterruptedError. Throws DataError if
/// the program cannot be started; the message ends with `hint`.
ChildResult run_child(const std::vector<std::string>& arguments, const std::string& input, const std::string& hint,
                      const RunControl& control);

}  // namespace layerpress
