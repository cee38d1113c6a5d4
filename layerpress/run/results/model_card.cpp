#include "layerpress/run/results/model_card.h"

#include <algorithm>
#include <filesystem>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "layerpress/base/file.h"
#include "layerpress/base/text.h"
#include "layerpress/modifier/quantizing/quantizing_modifier.h"
#include "layerpress/recipe/recipe.h"
#include "layerpress/recipe/yaml_to_json.h"
#include "layerpress/run/compression/model_name.h"
#include "layerpress/run/results/card_quality.h"
#include "layerpress/run/results/reproduction.h"
#include "layerpress/run/results/result_facts.h"
#include "layerpress/setup/assignment/written_recipe.h"

namespace layerpress::run {
namespace {

namespace fs = std::filesystem;

/// What is as true of the compressed model as of the original.
constexpr const char* kCarriedOver[] = {"license", "license_name", "license_link", "language", "pipeline_tag"};

/// The metadata of the original model's card; empty if there is none that can be read.
OrderedJson original_metadata(const fs::path& model) {
  if (model.empty()) return {};
  std::error_code failure;
  const fs::path file = model / kCardName;
  if (!fs::is_regular_file(file, failure) || fs::file_size(file, failure) > kLongestCard || failure) return {};
  const std::string text = read_text_file(file);
  constexpr std::string_view kFence = "---\n";
  if (!text.starts_with(kFence)) return {};
  const std::size_t end = text.find("\n---", kFence.size() - 1);
  if (end == std::string::npos) return {};
  try {
    OrderedJson metadata = recipe::yaml_to_json(text.substr(kFence.size(), end + 1 - kFence.size()), file.string());
    return metadata.is_object() ? metadata : OrderedJson();
  } catch (const RecipeError&) {
    return {};
  }
}

/// A list of quantities by name: "4-bit int group 128: 210 modules; ...", in the order of their first mention.
std::string text_of(const std::vector<std::string>& schemes) {
  std::vector<std::pair<std::string, int>> counts;
  for (const std::string& scheme : schemes) {
    const auto found = std::find_if(counts.begin(), counts.end(), [&](const auto& own) { return own.first == scheme; });
    if (found == counts.end())
      counts.emplace_back(scheme, 1);
    else
      ++found->second;
  }
  std::vector<std::string> texts;
  for (const auto& [scheme, count] : counts) texts.push_back(fmt::format("{}: {}", scheme, counted(count, "module")));
  return join(texts, "; ");
}

std::string schemes_text(const Json& modules) {
  std::vector<std::string> schemes;
  for (const Json& module : modules) schemes.push_back(module["scheme"]);
  return text_of(schemes);
}

/// Those that the source stores compressed, and that the run has left so.
std::string kept_text(const setup::OpenedModel& model) {
  std::vector<std::string> schemes;
  for (const std::string& name : model.kept) schemes.push_back(modifier::describe(model.quantized.at(name).scheme));
  return text_of(schemes);
}

std::string algorithms(const recipe::Recipe& recipe) {
  std::vector<std::string> types;
  for (const recipe::ModifierEntry& entry : recipe.modifiers) types.push_back(entry.type);
  return join(types, ", ");
}

/// Whether all weights are written as values.
bool is_dense(const setup::RunSetup& setup) {
  return !setup.assignments.quantizes() && setup.assignments.attentions.empty() && setup.model.kept.empty();
}

OrderedJson metadata(const ModelName& model, const fs::path& original, bool dense) {
  OrderedJson data = OrderedJson::object();
  if (!model.hub_id.empty())
    data = {{"base_model", model.hub_id}, {"base_model_relation", dense ? "finetune" : "quantized"}};
  const OrderedJson carried = original_metadata(original);
  data["library_name"] = "transformers";
  for (const char* key : kCarriedOver)
    if (json_has(carried, key)) data[key] = carried[key];
  data["tags"] = {"layerpress"};
  if (!dense) data["tags"].insert(data["tags"].begin(), "compressed-tensors");
  return data;
}

std::string calibration_text(const OneshotOptions& options, const Json& details) {
  const std::string dataset = public_dataset(options.dataset);
  return fmt::format("{} samples, {} tokens{}", details["samples"].get<std::int64_t>(),
                     details["tokens"].get<std::int64_t>(), dataset.empty() ? "" : " of " + dataset);
}

std::string size_text(std::uint64_t before, std::uint64_t after) {
  return fmt::format("{} before, {} now ({})", format_bytes(before), format_bytes(after), size_change(before, after));
}

/// The choice, and what the schemes beside it would lose.
std::string precision_text(const Json& mixed) {
  std::string text = fmt::format("measurements: {:.3f} bits per weight, predicted KL divergence {:.3g}",
                                 mixed["bits"].get<double>(), mixed["predicted_kl"].get<double>());
  if (!json_has(mixed, "measured_kl")) return text;
  text += fmt::format("; measured, rounded to nearest: {:.3g}", mixed["measured_kl"].get<double>());
  for (const Json& scheme : mixed["uniform"])
    if (json_has(scheme, "measured_kl"))
      text += fmt::format(", {} alone at {:.3f} bits {:.3g}", scheme["scheme"].get<std::string>(),
                          scheme["bits"].get<double>(), scheme["measured_kl"].get<double>());
  return text;
}

/// The name of a folder may be anything.
std::string in_markdown(const std::string& name) {
  std::string text;
  for (const char c : name)
    if (static_cast<unsigned char>(c) < ' ')
      text += ' ';
    else if (c == '<')
      text += "&lt;";
    else
      text += c == '|' ? "\\|" : std::string(1, c);
  return text;
}

std::string facts(const OneshotOptions& options, const ModelName& model, const setup::RunSetup& setup,
                  const OneshotSummary& summary) {
  const Json& details = summary.details;
  std::string text = "| | |\n|---|---|\n";
  const auto row = [&](const char* what, const std::string& value) {
    text += fmt::format("| {} | {} |\n", what, value);
  };
  const std::string name = in_markdown(model.shown);
  row("base model", model.revision.empty() ? name : fmt::format("{}, commit {}", name, model.revision));
  row("architecture", setup.model.architecture);
  row("modifiers", algorithms(setup.recipe));
  if (!details["modules"].empty()) row("weights", schemes_text(details["modules"]));
  if (!setup.model.kept.empty()) row("weights as the source stores them", kept_text(setup.model));
  if (const auto& attentions = setup.assignments.attentions; !attentions.empty()) {
    quant::QuantizationScheme cache;
    cache.weights = *attentions.back().args;
    row("cache of keys and values", modifier::describe(cache));
  }
  if (const Json& mixed = details["mixed_precision"]; !mixed.is_null()) row("schemes chosen by", precision_text(mixed));
  row("size of the weights", size_text(details["source_bytes"].get<std::uint64_t>(), summary.output_bytes));
  if (details["samples"].get<std::int64_t>() > 0) row("calibration", calibration_text(options, details));
  if (summary.fallbacks > 0) row("modules with a fallback", fmt::format("{}", summary.fallbacks));
  return text;
}

}  // namespace

std::string model_card(const OneshotOptions& options, const setup::RunSetup& setup, const OneshotSummary& summary) {
  const ModelName model = name_of_model(options.model);
  std::string text =
      "---\n" + recipe::yaml_members(metadata(model, setup.model.checkpoint->directory(), is_dense(setup))) + "---\n\n";
  text += fmt::format("# {0}, compressed\n\n{0}, compressed by Layerpress {1}, {2}.\n\n", in_markdown(model.shown),
                      LAYERPRESS_VERSION,
                      is_dense(setup) ? "with dense weights as the original has them" : "in " + setup.target->format());
  text += facts(options, model, setup, summary);
  text += fmt::format("\n## Serve\n\nFrom this folder:\n\n    {}\n\nIt needs {}.\n\n",
                      serving(".", setup)["command"].get<std::string>(),
                      summary.details["serving"]["hardware"].get<std::string>());
  text += unmeasured_quality(model);
  const int ranks = setup.pipeline->takes_data ? setup.ranks : 1;  // without data all numbers of ranks give the same
  text += fmt::format("\n## Reproduce\n\nWith Layerpress {}{}:\n\n    {}\n\nProducts were computed in {}.\n",
                      LAYERPRESS_VERSION, options.recipe.empty() ? "" : ", in this folder",
                      reproduction(options, model, ranks), setup::arithmetic_words(setup.placement));
  const std::string recipe = setup::recipe_text(setup.model, setup.recipe, setup.modifiers);
  if (!setup::earlier_recipe(recipe).empty())
    text += "The model that this command reads had been made by the recipe that stands in comments below.\n";
  text += fmt::format("\n## Recipe\n\n```yaml\n{}```\n", recipe);
  return text;
}

}  // namespace layerpress::run
