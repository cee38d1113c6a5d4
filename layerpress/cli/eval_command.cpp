#include "layerpress/cli/commands.h"
#include "layerpress/cli/option_parser.h"
#include "layerpress/evaluate.h"

namespace layerpress::cli {
namespace {

std::string as_table(const Evaluation& evaluation) {
  std::string text =
      fmt::format("{:<24}{:>12.4f}\n{:<24}{:>12}\n", "perplexity", evaluation.perplexity, "tokens", evaluation.tokens);
  if (evaluation.kl_divergence) text += fmt::format("{:<24}{:>12.5f}\n", "KL divergence", *evaluation.kl_divergence);
  if (evaluation.top1_agreement)
    text += fmt::format("{:<24}{:>12.2f} %\n", "top-1 agreement", 100 * *evaluation.top1_agreement);
  text += fmt::format("{:<24}{:>12.1f}\n", "seconds", evaluation.seconds);
  if (!evaluation.layers.empty()) text += "\nrelative error of the residual stream after\n";
  for (const Evaluation::LayerError& layer : evaluation.layers)
    text += fmt::format("{:<24}{:>12.5f}\n", layer.name, layer.relative_error);
  return text;
}

}  // namespace

void add_eval(CLI::App& app, CommonOptions& common, Action& action) {
  auto options = std::make_shared<EvaluateOptions>();
  CLI::App* command =
      app.add_subcommand("eval", "Measure a plain or compressed model on text; prints JSON, or a table");
  add_model_argument(*command, options->model);
  add_options(*command, *options);
  command->get_option("--dataset")->required();
  auto table = std::make_shared<bool>(false);
  command->add_flag("--table", *table, "print a table instead of JSON");
  add_common_options(*command, common);
  command->callback([options, table, &action] {
    action = [options, table](const RunControl& control) {
      const Evaluation evaluation = evaluate(*options, control);
      fmt::print("{}", *table ? as_table(evaluation) : evaluation.to_json().dump(2) + "\n");
      return 0;
    };
  });
}

}  // namespace layerpress::cli
