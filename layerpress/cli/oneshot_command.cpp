#include <cstdio>

#include "layerpress/base/text.h"
#include "layerpress/cli/commands.h"
#include "layerpress/cli/option_parser.h"
#include "layerpress/cli/plan_text.h"
#include "layerpress/oneshot.h"

namespace layerpress::cli {
namespace {

struct Settings {
  OneshotOptions options;
  bool dry_run = false;
  bool json = false;
};

int show_plan(const Settings& settings, const RunControl& control) {
  const Json plan = plan_oneshot(settings.options, control);
  fmt::print("{}", settings.json ? plan.dump(2) + "\n" : plan_text(plan));
  return 0;
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

/// What to type to go on, when the run has left something to go on with.
void print_resume_command(const CommonOptions& common, const OneshotOptions& options) {
  try {
    if (find_unfinished_run(options.output)) fmt::print(stderr, "continue with: {} --resume\n", common.command_line);
  } catch (const Error&) {
    // The error that ended the run is the one to show.
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
    action = [settings, &common](const RunControl& control) {
      if (settings->dry_run) return show_plan(*settings, control);
      try {
        print_summary(oneshot(settings->options, control));
      } catch (const Error& error) {
        if (error.kind() != ErrorKind::kUsage) print_resume_command(common, settings->options);
        throw;
      } catch (const std::exception&) {
        print_resume_command(common, settings->options);
        throw;
      }
      return 0;
    };
  });
}

}  // namespace layerpress::cli
