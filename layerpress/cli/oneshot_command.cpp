#include <cstdio>

#include "layerpress/base/text.h"
#include "layerpress/cli/commands.h"
#include "layerpress/cli/option_parser.h"
#include "layerpress/oneshot.h"

namespace layerpress::cli {

void add_oneshot(CLI::App& app, CommonOptions& common, Action& action) {
  auto options = std::make_shared<OneshotOptions>();
  CLI::App* command = app.add_subcommand("oneshot", "Compress a model in one shot");
  add_model_argument(*command, options->model);
  add_options(*command, *options);
  command->get_option("--output")->required();
  add_common_options(*command, common);
  command->callback([options, &action] {
    action = [options](const RunControl& control) {
      const OneshotSummary summary = oneshot(*options, control);
      fmt::print("{}: {} modules compressed in {:.1f} s, {}{}\n", summary.output, summary.modules, summary.seconds,
                 format_bytes(summary.output_bytes),
                 summary.fallbacks == 0 ? "" : fmt::format(", {} with a fallback", summary.fallbacks));
      return 0;
    };
  });
}

}  // namespace layerpress::cli
