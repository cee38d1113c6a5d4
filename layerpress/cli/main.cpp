#include <malloc.h>

#include <atomic>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <new>

#include "layerpress/base/error.h"
#include "layerpress/cli/commands.h"
#include "layerpress/cli/option_parser.h"
#include "layerpress/cli/terminal_progress.h"

namespace {

std::atomic<bool> stop_requested{false};

extern "C" void request_stop(int) {
  // A second signal ends the program at once.
  if (stop_requested.exchange(true)) std::_Exit(130);
}

void prepare_process() {
  // Activations of one size are allocated again and again; keeping freed memory saves faulting its pages in each time.
  ::mallopt(M_MMAP_THRESHOLD, 1 << 30);
  ::mallopt(M_TRIM_THRESHOLD, 256 << 20);
  std::signal(SIGINT, request_stop);
  std::signal(SIGTERM, request_stop);
  // A closed terminal stops the run, unless nohup has seen to it.
  if (std::signal(SIGHUP, SIG_IGN) != SIG_IGN) std::signal(SIGHUP, request_stop);
  std::signal(SIGPIPE, SIG_IGN);
  std::signal(SIGXFSZ, SIG_IGN);  // a file-size limit then shows as an error of the write
}

layerpress::LogLevel log_level(const std::string& name) {
  using layerpress::LogLevel;
  if (name == "debug") return LogLevel::kDebug;
  if (name == "warning") return LogLevel::kWarning;
  return name == "error" ? LogLevel::kError : LogLevel::kInfo;
}

int fail(const std::string& message, int code) {
  std::string line = message.substr(0, message.find('\n'));
  fmt::print(stderr, "error: {}\n", line);
  return code;
}

int run(int argc, char** argv) {
  using namespace layerpress;
  CLI::App app("Layerpress compresses large language models in one shot, layer by layer.", "layerpress");
  app.set_version_flag("--version", std::string("layerpress ") + LAYERPRESS_VERSION);
  app.require_subcommand(1);
  app.failure_message([](const CLI::App*, const CLI::Error&) { return std::string(); });
  cli::CommonOptions common;
  cli::Action action;
  cli::add_oneshot(app, common, action);
  cli::add_eval(app, common, action);
  cli::add_inspect(app, common, action);
  cli::add_prepare(app, common, action);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) return app.exit(error);  // --help, --version
    return fail(std::string("[options] ") + error.what() + "; see --help", 2);
  }
  try {
    cli::TerminalProgress progress(log_level(common.log_level), !common.no_progress);
    return action({&progress, &stop_requested});
  } catch (const Error& error) {
    return fail(error.what(), error.kind() == ErrorKind::kUsage         ? 2
                              : error.kind() == ErrorKind::kInterrupted ? 130
                                                                        : 1);
  } catch (const std::bad_alloc&) {
    return fail("[memory] out of memory; use smaller --batch-tokens or fewer samples", 1);
  } catch (const std::exception& error) {
    return fail(std::string("[internal] ") + error.what(), 1);
  }
}

}  // namespace

int main(int argc, char** argv) {
  prepare_process();
  return run(argc, argv);
}
