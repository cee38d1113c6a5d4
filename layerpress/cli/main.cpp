#include <c10/util/Exception.h>
#include <c10/util/Logging.h>
#include <malloc.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <new>
#include <system_error>

#include "layerpress/base/error.h"
#include "layerpress/base/file.h"
#include "layerpress/cli/commands.h"
#include "layerpress/cli/text/terminal_progress.h"

namespace {

std::atomic<bool> stop_requested{false};

extern "C" void request_stop(int) {
  // A second signal ends the program at once.
  if (stop_requested.exchange(true)) std::_Exit(130);
}

/// As the first of these signals. The kernel sends it once for each thread of the parent.
extern "C" void stop_alone(int) { stop_requested = true; }

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
  // Without torchrun, which starts the other ranks and ends them, a rank would wait for them in vain.
  if (std::getenv("TORCHELASTIC_RUN_ID") != nullptr && std::signal(SIGUSR1, stop_alone) != SIG_ERR)
    (void)::prctl(PR_SET_PDEATHSIG, SIGUSR1);
  std::signal(SIGPIPE, SIG_IGN);
  std::signal(SIGXFSZ, SIG_IGN);  // exceeding a file-size limit then fails the write
  explain_bus_errors();
}

layerpress::LogLevel log_level(const std::string& name) {
  using layerpress::LogLevel;
  if (name == "debug") return LogLevel::kDebug;
  if (name == "warning") return LogLevel::kWarning;
  return name == "error" ? LogLevel::kError : LogLevel::kInfo;
}

using Command = int (*)(const layerpress::cli::CommandLine&, const layerpress::RunControl&);

Command command_of(const layerpress::cli::CommandLine& line) {
  using namespace layerpress::cli;
  if (line.subcommand == "oneshot") return run_oneshot;
  if (line.subcommand == "eval") return run_eval;
  if (line.subcommand == "inspect") return run_inspect;
  return line.subcommand == "verify" ? run_verify : run_prepare;
}

int run(int argc, char** argv) {
  using namespace layerpress;
  cli::CommandLine line;
  int code = 0;
  if (!cli::parse_command_line(argc, argv, line, code)) return code;
  try {
    cli::TerminalProgress progress(log_level(line.common.log_level), !line.common.no_progress);
    return command_of(line)(line, {&progress, &stop_requested});
  } catch (const Error& error) {
    return cli::fail(error.what(), cli::exit_code(error.kind()));
  } catch (const cli::QuietExit& quiet) {
    return quiet.code;
  } catch (const std::bad_alloc&) {
    return cli::fail("[memory] out of memory; use smaller --batch-tokens or fewer samples", 1);
  } catch (const c10::OutOfMemoryError&) {
    return cli::fail("[memory] the device is out of memory; use a smaller --device-memory-budget or --batch-tokens", 1);
  } catch (const std::exception& error) {
    const auto* system = dynamic_cast<const std::system_error*>(&error);
    if (system != nullptr && system->code() == std::errc::resource_unavailable_try_again)
      return cli::fail("[start] no more threads can be started; use fewer --threads or raise the limit (ulimit -u)", 1);
    return cli::fail(std::string("[internal] ") + error.what(), 1);
  }
}

}  // namespace

int main(int argc, char** argv) {
  prepare_process();
  const int code = layerpress::cli::end_output(run(argc, argv));
  // Nothing is left to clean up: destroying libtorch's registries would take 60 ms, and after a failure of a distributed run, threads may
  // wait for lost ranks.
  std::fflush(nullptr);
  std::_Exit(code);
}
