#include "layerpress/cli/commands.h"
#include "layerpress/cli/option_parser.h"
#include "layerpress/evaluate.h"

namespace layerpress::cli {

void add_eval(CLI::App& app, CommonOptions& common, Action& action) {
  auto options = std::make_shared<EvaluateOptions>();
  CLI::App* command = app.add_subcommand("eval", "Measure a plain or compressed model on text; prints JSON");
  add_model_argument(*command, options->model);
  add_options(*command, *options);
  command->get_option("--dataset")->required();
  add_common_options(*command, common);
  command->callback([options, &action] {
    action = [options](const RunControl& control) {
      fmt::print("{}\n", evaluate(*options, control).to_json().dump(2));
      return 0;
    };
  });
}

}  // namespace layerpress::cli
