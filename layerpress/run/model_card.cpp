#include "layerpress/run/model_card.h"

#include <algorithm>
#include <filesystem>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "layerpress/base/file.h"
#include "layerpress/base/text.h"
#include "layerpress/recipe/recipe.h"
#include "layerpress/recipe/yaml_to_json.h"
#include "layerpress/setup/written_recipe.h"

namespace layerpress::run {
namespace {

namespace fs = std::filesystem;

constexpr const char* kCardName = "README.md";
constexpr std::uintmax_t kLongestCard = 4 << 20;
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

/// A model's id on the hub, also where its folder in the hub's cache was named, or the name of its folder.
std::string model_name(const std::string& model) {
  std::error_code failure;
  if (!fs::is_directory(model, failure)) return model.substr(0, model.find('@'));
  const fs::path folder = fs::weakly_canonical(model, failure);
  constexpr std::string_view kPrefix = "models--";
  for (const fs::path& part : folder) {
    std::string name = part.string();
    if (!name.starts_with(kPrefix)) continue;
    name.erase(0, kPrefix.size());
    const std::size_t end = name.find("--");
    return end == std::string::npos ? name : fmt::format("{}/{}", name.substr(0, end), name.substr(end + 2));
  }
  return folder.filename().string();
}

/// " of HuggingFaceH4/ultrachat_200k"; nothing for files, which readers of the card do not have.
std::string of_dataset(const std::string& dataset) {
  std::error_code failure;
  return fs::exists(dataset, failure) ? "" : " of " + dataset;
}

/// A list of quantities by name: "4-bit int group 128 (210), ...", in the order of their first mention.
std::string schemes_text(const Json& modules) {
  std::vector<std::pair<std::string, int>> counts;
  for (const Json& module : modules) {
    const auto scheme = module["scheme"].get<std::string>();
    const auto found = std::find_if(counts.begin(), counts.end(), [&](const auto& own) { return own.first == scheme; });
    if (found == counts.end())
      counts.emplace_back(scheme, 1);
    else
      ++found->second;
  }
  std::vector<std::string> texts;
  for (const auto& [scheme, count] : counts)
    texts.push_back(fmt::format("{}: {} {}", scheme, count, count == 1 ? "module" : "modules"));
  return join(texts, "; ");
}

std::string algorithms(const recipe::Recipe& recipe) {
  std::vector<std::string> types;
  for (const recipe::ModifierEntry& entry : recipe.modifiers) types.push_back(entry.type);
  return join(types, ", ");
}

OrderedJson metadata(const std::string& base, const fs::path& original) {
  OrderedJson data = {{"base_model", base}, {"base_model_relation", "quantized"}};
  const OrderedJson carried = original_metadata(original);
  data["library_name"] = "transformers";
  for (const char* key : kCarriedOver)
    if (json_has(carried, key)) data[key] = carried[key];
  data["tags"] = {"compressed-tensors", "layerpress"};
  return data;
}

}  // namespace

std::string model_card(const OneshotOptions& options, const setup::RunSetup& setup, const OneshotSummary& summary) {
  const std::string base = model_name(options.model);
  const Json& details = summary.details;
  std::string text = "---\n" + recipe::yaml_members(metadata(base, setup.model.checkpoint->directory())) + "---\n\n";
  text += fmt::format("# {0}, compressed\n\n{0}, compressed by Layerpress {1}, in the compressed-tensors format.\n\n",
                      base, LAYERPRESS_VERSION);
  const auto row = [&](const char* what, const std::string& value) {
    text += fmt::format("| {} | {} |\n", what, value);
  };
  text += "| | |\n|---|---|\n";
  row("base model", base);
  row("architecture", setup.model.architecture);
  row("modifiers", algorithms(setup.recipe));
  row("weights", schemes_text(details["modules"]));
  if (details["samples"].get<std::int64_t>() > 0)
    row("calibration", fmt::format("{} samples, {} tokens{}", details["samples"].get<std::int64_t>(),
                                   details["tokens"].get<std::int64_t>(), of_dataset(options.dataset)));
  row("size of the weights", format_bytes(summary.output_bytes));
  if (summary.fallbacks > 0) row("modules with a fallback", fmt::format("{}", summary.fallbacks));
  text += fmt::format("\nServe it, from this folder:\n\n    vllm serve .\n\nThe recipe:\n\n```yaml\n{}```\n",
                      recipe::to_yaml(setup::written_recipe(setup.recipe, setup.modifiers)));
  return text;
}

}  // namespace layerpress::run
