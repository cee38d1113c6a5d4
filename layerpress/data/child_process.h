#pragma once

#include <string>
#include <vector>

#include "layerpress/base/progress.h"

namespace layerpress::data {

/// What a child process left behind. Of each stream the last 64 KiB are kept.
struct ChildResult {
  int exit_code = 0;  ///< 128 + signal number when a signal ended it
  std::string output;
  std::string errors;
};

/// Runs `arguments` (the program first, looked up in PATH) without a shell, feeds it `input` and waits for its end.
/// A stop request ends the child (SIGTERM, two seconds later SIGKILL) and throws InterruptedError.
/// Throws DataError when the program cannot be started; the message ends with `hint`.
ChildResult run_child(const std::vector<std::string>& arguments, const std::string& input, const std::string& hint,
                      const RunControl& control);

}  // namespace layerpress::data
