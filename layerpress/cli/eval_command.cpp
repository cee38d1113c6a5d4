#include "layerpress/cli/commands.h"
#include "layerpress/evaluate.h"

namespace layerpress::cli {
namespace {

/// The metrics of each task; the reference's and the share of it that is left.
std::string task_rows(const Json& tasks) {
  std::string text = fmt::format("\n{:<46}{:>10}{:>11}{:>10}\n", "task", "", "reference", "recovery");
  for (const auto& [name, task] : tasks.items())
    for (const auto& [metric, value] : task["metrics"].items()) {
      text += fmt::format("{:<46}{:>10.4f}", name + " " + metric, value.get<double>());
      if (task.contains("reference"))
        text += fmt::format("{:>11.4f}{:>10.4f}", task["reference"].value(metric, 0.0),
                            task["recovery"].value(metric, 0.0));
      text += "\n";
    }
  return text;
}

/// A text on one line, in quotes.
std::string json_text(const std::string& text) {
  return Json(text).dump(-1, ' ', false, Json::error_handler_t::replace);
}

/// The end of a text, in quotes, that fits into so many columns.
std::string quoted_end(std::string text, std::size_t columns) {
  while (!text.empty() && json_text(text).size() > columns) {
    text.erase(0, 1);
    while (!text.empty() && (static_cast<unsigned char>(text[0]) & 0xC0) == 0x80)
      text.erase(0, 1);  // a whole character
  }
  return json_text(text);
}

/// A token and what is before it, in a line of 80 columns.
std::string token_row(const Evaluation::WorstToken& token) {
  constexpr std::size_t kColumns = 80;
  std::string text = "    " + quoted_end(token.text, kColumns / 2);
  if (!token.before.empty()) {
    text += " after ";
    text += quoted_end(token.before, kColumns - text.size());
  }
  return text + "\n";
}

/// How the divergence is spread over the tokens, and the worst of them.
std::string divergence_rows(const Evaluation& evaluation) {
  std::string text = fmt::format("{:<24}{:>12.5f}\n", "KL divergence", *evaluation.kl_divergence);
  if (evaluation.kl_median) text += fmt::format("{:<24}{:>12.5f}\n", "  median token", *evaluation.kl_median);
  if (evaluation.kl_percentile_99)
    text += fmt::format("{:<24}{:>12.5f}\n", "  99th percentile", *evaluation.kl_percentile_99);
  if (evaluation.worst_tokens.empty()) return text;
  const Evaluation::WorstToken& worst = evaluation.worst_tokens.front();
  text += fmt::format("{:<24}{:>12.5f}  sample {}, position {}\n", "  worst token", worst.kl_divergence, worst.sample,
                      worst.position);
  return text + (worst.text.empty() ? "" : token_row(worst));
}

std::string as_table(const Evaluation& evaluation) {
  std::string text;
  if (evaluation.tokens > 0) text = fmt::format("{:<24}{:>12.4f}\n", "perplexity", evaluation.perplexity);
  if (evaluation.reference_perplexity)
    text += fmt::format("{:<24}{:>12.4f}\n", "reference's perplexity", *evaluation.reference_perplexity);
  if (evaluation.tokens > 0) text += fmt::format("{:<24}{:>12}\n", "tokens", evaluation.tokens);
  if (evaluation.rounded_linears)
    text += fmt::format("{:<24}{:>12}\n", "linears, inputs rounded", *evaluation.rounded_linears);
  if (evaluation.kl_divergence) text += divergence_rows(evaluation);
  if (evaluation.top1_agreement)
    text += fmt::format("{:<24}{:>12.2f} %\n", "top-1 agreement", 100 * *evaluation.top1_agreement);
  text += fmt::format("{:<24}{:>12.1f}\n", "seconds", evaluation.seconds);
  if (!evaluation.layers.empty()) text += "\nrelative error of the residual stream after\n";
  for (const Evaluation::LayerError& layer : evaluation.layers)
    text += fmt::format("{:<24}{:>12.5f}\n", layer.name, layer.relative_error);
  if (!evaluation.tasks.is_null()) text += task_rows(evaluation.tasks["tasks"]);
  return text;
}

}  // namespace

int run_eval(const CommandLine& line, const RunControl& control) {
  const Evaluation evaluation = evaluate(line.eval, control);
  end_progress(control);
  fmt::print("{}", line.table ? as_table(evaluation) : evaluation.to_json().dump(2) + "\n");
  return 0;
}

}  // namespace layerpress::cli
