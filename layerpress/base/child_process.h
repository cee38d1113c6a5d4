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

/// Runs `arguments` (the program first, looked up in PATH) without a shell, sends it `input` and waits until it ends. A
/// stop request ends the child (SIGTERM, two seconds later SIGKILL) and throws InterruptedError. Throws DataError if
/// the program cannot be started; the message ends with `hint`. `on_line` is given each line of the output as it comes.
ChildResult run_child(const std::vector<std::string>& arguments, const std::string& input, const std::string& hint,
                      const RunControl& control, const std::function<void(std::string_view)>& on_line = {});

/// The text after `error: ` in the last of these lines that begins with it, or empty if there is none.
std::string reported_error(const std::string& errors);

/// What a failed helper of ours says: the text after `error: ` in the last line that begins with it, else `where`, the
/// exit code and the last line.
std::string reported_error(const ChildResult& result, const std::string& where);

}  // namespace layerpress
