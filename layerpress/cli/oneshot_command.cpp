#include <cstdio>

#include "layerpress/base/text.h"
#include "layerpress/cli/commands.h"
#include "layerpress/cli/option_parser.h"
#include "layerpress/cli/plan_text.h"
#include "layerpress/distributed.h"
#include "layerpress/oneshot.h"

namespace layerpress::cli {
namespace {

struct Settings {
  OneshotOptions options;
  bool dry_run = false;
  bool json = false;
};

void show_plan(const Settings& settings, const RunControl& control, Distributed& ranks) {
  const Json plan = plan_oneshot(settings.options, control, &ranks);
  if (ranks.is_first()) fmt::print("{}", settings.json ? plan.dump(2) + "\n" : plan_text(plan));
}

void print_summary(const OneshotSummary& summary) {
  if (summary.already_complete) {
    fmt::print("{}: already complete\n", summary.output);
    return;
  }
  fmt::print("{}: {} modules compressed in {:.1f} s, {}{}\n", summary.output, summary.modules, summary.seconds,
             format_bytes(summary.output_bytes),
             summary.fallbacks == 0 ? "" : fmt::format(", {} with a fallback", summary.fallbacks));
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

/// Of several ranks, only one reports the failure.
[[noreturn]] void report_failure(const CommonOptions& common, const OneshotOptions& options, const Distributed& ranks,
                                 ErrorKind kind, const std::string& message) {
  if (!ranks.reports_failure()) throw QuietExit{exit_code(kind)};
  if (kind != ErrorKind::kUsage) print_resume_command(common, options, ranks.size());
  const std::string failure = ranks.failure();
  throw Error(kind, failure.empty() ? message : failure);
}

int run(const Settings& settings, const CommonOptions& common, const RunControl& control) {
  const OneshotOptions& options = settings.options;
  const auto ranks = init_dist(std::chrono::seconds(options.timeout), control);
  try {
    if (settings.dry_run) {
      show_plan(settings, control, *ranks);
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

}  // namespace

void add_oneshot(CLI::App& app, CommonOptions& common, Action& action) {
  auto settings = std::make_shared<Settings>();
  OneshotOptions& options = settings->options;
  CLI::App* command = app.add_subcommand("oneshot", "Compress a model in one shot");
  add_model_argument(*command, options.model);
  add_options(*command, options);
  CLI::Option* dry_run = command->add_flag("--dry-run", settings->dry_run,
                                           "show memory, disk and time that the run would take, and stop there");
  command->add_flag("--json", settings->json, "with --dry-run: print JSON")->needs(dry_run);
  add_common_options(*command, common);
  command->callback([settings, &common, &action] {
    action = [settings, &common](const RunControl& control) { return run(*settings, common, control); };
  });
}

}  // namespace layerpress::cli
