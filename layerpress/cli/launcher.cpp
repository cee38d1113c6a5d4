// The command that users start. It is not linked with libtorch, whose loading takes longer than the answer to --help,
// and starts the program that is. Libraries read their settings when they are loaded, so these are set here, too.
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <csignal>
#include <cstdlib>
#include <cstring>

#include "layerpress/base/error.h"
#include "layerpress/cli/command_line.h"

namespace {

constexpr char kSuffix[] = "-program";

/// Threads that wait for others ask again about this often before they sleep: some dozens of microseconds. By default
/// OpenMP keeps asking for milliseconds, and where other processes want the cores, threads then use up the time that
/// those need for which they wait.
constexpr char kQuestions[] = "2000";

/// The user's own choice counts.
void let_threads_sleep() {
  if (std::getenv("OMP_WAIT_POLICY") == nullptr && std::getenv("GOMP_SPINCOUNT") == nullptr)
    ::setenv("GOMP_SPINCOUNT", kQuestions, /*overwrite=*/0);
}

/// libtorch for CUDA pins host memory, for values that wait there, with the pages touched by several threads: 3 GiB in 0.4 seconds instead of
/// 1.4 (H100).
void pin_on_threads() {
  if (std::getenv("PYTORCH_ALLOC_CONF") == nullptr)
    ::setenv("PYTORCH_CUDA_ALLOC_CONF", "pinned_use_cuda_host_register:True,pinned_num_register_threads:8",
             /*overwrite=*/0);
}

int cannot_start(const char* what, int error) {
  return layerpress::cli::fail(fmt::format("[start] {}: {}; install Layerpress again", what, std::strerror(error)), 1);
}

}  // namespace

int main(int argc, char** argv) {
  layerpress::cli::CommandLine line;
  int code = 0;
  std::signal(SIGPIPE, SIG_IGN);  // a reader that wants no more is no failure; the program ignores it, too
  if (!layerpress::cli::parse_command_line(argc, argv, line, code)) return layerpress::cli::end_output(code);
  if (char here[PATH_MAX]; ::getcwd(here, sizeof(here)) == nullptr && errno == ENOENT)
    return layerpress::cli::fail("[start] the current directory does not exist any more; change to another", 1);
  let_threads_sleep();
  pin_on_threads();
  // In the folder of this file; links to it are followed.
  char path[PATH_MAX + sizeof(kSuffix)] = {};
  const ssize_t length = ::readlink("/proc/self/exe", path, PATH_MAX);
  if (length < 0) return cannot_start("/proc/self/exe", errno);
  std::copy_n(kSuffix, sizeof(kSuffix), path + length);
  ::execv(path, argv);
  return cannot_start(path, errno);
}
