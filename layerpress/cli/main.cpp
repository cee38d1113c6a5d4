#include <c10/util/Exception.h>
#include <c10/util/Logging.h>
#include <malloc.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <new>

#include "layerpress/base/error.h"
#include "layerpress/base/file.h"
#include "layerpress/cli/commands.h"
#include "layerpress/cli/option_parser.h"
#include "layerpress/cli/terminal_progress.h"

namespace {

std::atomic<bool> stop_requested{false};

extern "C" void request_stop(int) {
  // A second signal ends the program at once.
  if (stop_requested.exchange(true)) std::_Exit(130);
}

/// If a mapped file shrinks or fails while it is read, the program ends; this handler names the file. It calls only
/// async-signal-safe functions.
extern "C" void explain_bus_error(int, siginfo_t* info, void*) {
  const auto say = [](const char* text) { (void)!::write(STDERR_FILENO, text, std::strlen(text)); };
  const char* path = layerpress::mapped_file_at(info->si_addr);
  if (path == nullptr) {
    std::signal(SIGBUS, SIG_DFL);
    std::raise(SIGBUS);
    return;
  }
  say("\nerror: [file.map] ");
  say(path);
  say(": was truncated or could not be read while in use; restore the file; what was finished can be continued with "
      "--resume\n");
  std::_Exit(1);
}

void explain_bus_errors() {
  struct sigaction action {};
  action.sa_sigaction = explain_bus_error;
  action.sa_flags = SA_SIGINFO;
  sigaction(SIGBUS, &action, nullptr);
}

void prepare_process() {
  // Errors are thrown and printed once, in our own words; the libraries' messages with stack traces are for developers.
  if (std::getenv("TORCH_CPP_LOG_LEVEL") == nullptr) FLAGS_caffe2_log_level = c10::GLOG_FATAL;
  // Returns freed memory to the kernel instead of keeping it in the process, because the plan promises a peak.
  ::mallopt(M_MMAP_THRESHOLD, 1 << 20);
  ::mallopt(M_TRIM_THRESHOLD, 8 << 20);
  std::signal(SIGINT, request_stop);
  std::signal(SIGTERM, request_stop);
  // Closing the terminal stops the run, unless it was started with nohup.
  if (std::signal(SIGHUP, SIG_IGN) != SIG_IGN) std::signal(SIGHUP, request_stop);
  std::signal(SIGPIPE, SIG_IGN);
  std::signal(SIGXFSZ, SIG_IGN);  // exceeding a file-size limit then fails the write
  explain_bus_errors();
}

/// An argument quoted for a shell.
std::string quoted(const std::string& argument) {
  const bool plain = !argument.empty() && argument.find_first_not_of(
                                              "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
                                              "0123456789_-./=:,+@%") == std::string::npos;
  if (plain) return argument;
  std::string text = "'";
  for (const char c : argument) text += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return text + "'";
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
  for (int i = 0; i < argc; ++i)
    if (std::strcmp(argv[i], "--resume") != 0) common.command_line += (i == 0 ? "" : " ") + quoted(argv[i]);
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
    return fail(error.what(), cli::exit_code(error.kind()));
  } catch (const cli::QuietExit& quiet) {
    return quiet.code;
  } catch (const std::bad_alloc&) {
    return fail("[memory] out of memory; use smaller --batch-tokens or fewer samples", 1);
  } catch (const c10::OutOfMemoryError&) {
    return fail("[memory] the device is out of memory; use a smaller --device-memory-budget or --batch-tokens", 1);
  } catch (const std::exception& error) {
    return fail(std::string("[internal] ") + error.what(), 1);
  }
}

}  // namespace

int main(int argc, char** argv) {
  prepare_process();
  const int code = run(argc, argv);
  if (code == 0) return 0;
  // After a failure of a distributed run, threads may wait for lost ranks; they need no cleanup.
  std::fflush(nullptr);
  std::_Exit(code);
}
