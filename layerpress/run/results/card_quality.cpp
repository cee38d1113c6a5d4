#include "layerpress/run/results/card_quality.h"

#include <fmt/format.h>

#include <filesystem>
#include <string_view>
#include <system_error>

#include "layerpress/base/error.h"
#include "layerpress/base/file.h"
#include "layerpress/checkpoint/model_location.h"
#include "layerpress/run/results/reproduction.h"

namespace layerpress::run {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kBegin = "<!-- quality, written by layerpress eval --card -->\n";
constexpr std::string_view kEnd = "<!-- end of quality -->\n";

std::string section(const std::string& content) { return fmt::format("{}## Quality\n\n{}{}", kBegin, content, kEnd); }

/// A card and the place of its section.
struct Card {
  fs::path file;
  std::string text{};
  std::size_t begin = 0, end = 0;
};

Card read_card(const EvaluateOptions& options) {
  const fs::path model = checkpoint::locate_model(options.model);
  std::error_code failure;
  if (!fs::is_directory(model, failure))
    throw UsageError("[options] --card: {} is a file, which has no model card beside it; leave --card out",
                     model.string());
  Card card{.file = model / kCardName};
  // In the hub's cache, files are links to contents that other revisions share.
  if (fs::is_symlink(card.file, failure))
    throw UsageError("[options] --card: {} is a link; name a folder of your own", card.file.string());
  if (fs::is_regular_file(card.file, failure) && fs::file_size(card.file, failure) <= kLongestCard) {
    card.text = read_text_file(card.file);
    card.begin = card.text.find(kBegin);
    const std::size_t end = card.begin == std::string::npos ? card.begin : card.text.find(kEnd, card.begin);
    card.end = end == std::string::npos ? end : end + kEnd.size();
    if (card.end != std::string::npos && can_be_written(card.file)) return card;
  }
  throw UsageError(
      "[options] --card: {} is not a model card that oneshot wrote, or cannot be written; leave --card out",
      card.file.string());
}

std::string row(std::string_view name, const std::string& value) { return fmt::format("| {} | {} |\n", name, value); }

std::string number(const Json& value) {
  return value.is_number_integer() ? fmt::format("{}", value.get<std::int64_t>())
                                   : fmt::format("{:.4g}", value.get<double>());
}

std::string text_rows(const EvaluateOptions& options, const Json& figures) {
  const std::string dataset = public_dataset(options.dataset);
  std::string text =
      row("measured on", fmt::format("{} tokens{}", number(figures["tokens"]),
                                     dataset.empty() ? "" : " of " + dataset + ", " + options.dataset_split));
  text += row("perplexity", number(figures["perplexity"]));
  if (figures.contains("reference_perplexity"))
    text += row("perplexity of the original", number(figures["reference_perplexity"]));
  if (figures.contains("kl_divergence"))
    text += row("KL divergence from the original", number(figures["kl_divergence"]));
  if (figures.contains("worst_tokens"))
    text += row("the same for the median token, the 99th percentile, the worst token",
                fmt::format("{}, {}, {}", number(figures["kl_median"]), number(figures["kl_percentile_99"]),
                            number(figures["worst_tokens"][0]["kl_divergence"])));
  if (figures.contains("top1_agreement"))
    text += row("tokens with the same most likely successor",
                fmt::format("{:.1f} %", 100 * figures["top1_agreement"].get<double>()));
  if (figures.contains("rounded_linears")) text += row("activations", "quantized as an engine does");
  return text;
}

std::string task_rows(const Json& figures) {
  std::string text;
  for (const auto& [task, result] : figures["tasks"].items())
    for (const auto& [metric, value] : result["metrics"].items()) {
      if (!value.is_number()) continue;
      const bool has_reference = result.contains("reference") && result["reference"].contains(metric);
      text += row(fmt::format("{} {}", task, metric),
                  number(value) + (has_reference ? ", the original " + number(result["reference"][metric]) : ""));
    }
  return text;
}

std::string measured_quality(const EvaluateOptions& options, const Json& figures) {
  std::string text = "| | |\n|---|---|\n";
  if (figures.contains("perplexity")) text += text_rows(options, figures);
  if (figures.contains("tasks")) text += task_rows(figures);
  return text + "\n";
}

}  // namespace

std::string unmeasured_quality(const ModelName& original) {
  return section(
      fmt::format("Not measured yet. This compares with the original model and writes the figures here:\n\n"
                  "    layerpress eval . --reference {} --dataset TEXTS --card\n\n",
                  original.hub_id.empty() ? "ORIGINAL" : original.hub_id));
}

void check_card(const EvaluateOptions& options) {
  if (options.card) read_card(options);
}

void add_to_card(const EvaluateOptions& options, const Evaluation& evaluation) {
  if (!options.card) return;
  Card card = read_card(options);
  card.text.replace(card.begin, card.end - card.begin, section(measured_quality(options, evaluation.to_json())));
  write_text_file(card.file, card.text);
}

}  // namespace layerpress::run
