#include <chrono>
#include <cstdio>
#include <exception>

#include "layerpress/base/text.h"
#include "layerpress/cli/commands.h"
#include "layerpress/cli/plan_text.h"
#include "layerpress/distributed.h"
#include "layerpress/oneshot.h"

namespace layerpress::cli {
namespace {

void show_plan(const CommandLine& line, const RunControl& control, Distributed& ranks) {
  const Json plan = plan_oneshot(line.oneshot, control, &ranks);
  if (ranks.is_first()) fmt::print("{}", line.json ? plan.dump(2) + "\n" : plan_text(plan));
}

void print_upload(const OneshotSummary& summary) {
  if (!summary.uploaded.empty()) fmt::print("uploaded to {}\n", summary.uploaded);
}

void print_summary(const OneshotSummary& summary) {
  if (summary.already_complete) {
    fmt::print("{}: already complete\n", summary.output);
    print_upload(summary);
    return;
  }
  fmt::print("{}: {} modules compressed in {:.1f} s, {}{}\n", summary.output, summary.modules, summary.seconds,
             format_bytes(summary.output_bytes),
             summary.fallbacks == 0 ? "" : fmt::format(", {} with a fallback", summary.fallbacks));
  fmt::print("serve it with: vllm serve {}\n", quoted(summary.output));
  print_upload(summary);
}

/// Prints the command that resumes the run, if the run has left finished work.
void print_resume_command(const CommonOptions& common, const OneshotOptions& options, int ranks) {
  try {
    if (find_unfinished_run(options.output))
      fmt::print(stderr, "continue{} with: {} --resume\n", ranks > 1 ? ", on any number of ranks," : "",
                 common.command_line);
  } catch (const Error&) {
    // Only the error that ended the run is shown.
  }
}

/// Only one of several ranks reports the failure.
[[noreturn]] void report_failure(const CommonOptions& common, const OneshotOptions& options, const Distributed& ranks,
                                 ErrorKind kind, const std::string& message) {
  if (!ranks.reports_failure()) throw QuietExit{exit_code(kind)};
  if (kind != ErrorKind::kUsage) print_resume_command(common, options, ranks.size());
  const std::string failure = ranks.failure();
  throw Error(kind, failure.empty() ? message : failure);
}

}  // namespace

int run_oneshot(const CommandLine& line, const RunControl& control) {
  const OneshotOptions& options = line.oneshot;
  const CommonOptions& common = line.common;
  const auto ranks = init_dist(std::chrono::seconds(options.timeout), control);
  try {
    if (line.dry_run) {
      show_plan(line, control, *ranks);
    } else {
      const OneshotSummary summary = oneshot(options, control, ranks.get());
      if (ranks->is_first()) print_summary(summary);
    }
    return 0;
  } catch (const Error& error) {
    if (ranks->size() > 1) report_failure(common, options, *ranks, error.kind(), error.what());
    if (error.kind() != ErrorKind::kUsage) print_resume_command(common, options, 1);
    throw;
  } catch (const std::exception& error) {
    if (ranks->size() > 1) report_failure(common, options, *ranks, ErrorKind::kInternal, error.what());
    print_resume_command(common, options, 1);
    throw;
  }
}

}  // namespace layerpress::cli
