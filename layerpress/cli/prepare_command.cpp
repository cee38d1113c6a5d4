#include "layerpress/cli/commands.h"
#include "layerpress/cli/option_parser.h"
#include "layerpress/prepare.h"

namespace layerpress::cli {

void add_prepare(CLI::App& app, CommonOptions& common, Action& action) {
  auto options = std::make_shared<PrepareOptions>();
  CLI::App* command = app.add_subcommand("prepare", "Tokenize calibration data into a token file");
  add_model_argument(*command, options->model);
  add_options(*command, *options);
  command->get_option("--dataset")->required();
  command->get_option("--output")->required();
  add_common_options(*command, common);
  command->callback([options, &action] {
    action = [options](const RunControl& control) {
      const Prepared prepared = prepare(*options, control);
      fmt::print("{}: {} samples, {} tokens\n", options->output, prepared.samples, prepared.tokens);
      return 0;
    };
  });
}

}  // namespace layerpress::cli
