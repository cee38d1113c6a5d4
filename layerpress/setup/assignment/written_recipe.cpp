#include "layerpress/setup/assignment/written_recipe.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <filesystem>
#include <sstream>
#include <string_view>
#include <system_error>
#include <utility>

#include "layerpress/base/file.h"
#include "layerpress/base/text.h"
#include "layerpress/compression/modifier.h"
#include "layerpress/gguf/container/metadata.h"
#include "layerpress/quant/rounding/observer.h"
#include "layerpress/recipe/inherited_schemes.h"
#include "layerpress/recipe/separate_scaling.h"

namespace layerpress::setup {
namespace {

using Groups = std::vector<compression::Quantizer::SchemeGroup>;

/// The arguments with the observer as LLM Compressor has it; without one if it has none like it.
quant::QuantizationArgs portable(const quant::QuantizationArgs& weights) {
  static const std::array<std::string, 2> kOwn = {"squared_error", "gptq"};
  quant::QuantizationArgs result = quant::with_portable_observer(weights);
  if (result.observer && std::find(kOwn.begin(), kOwn.end(), *result.observer) != kOwn.end()) result.observer.reset();
  return result;
}

/// Whether only a group can say how the weights were observed: an observer's arguments have no other place.
bool needs_group(const quant::QuantizationScheme& scheme) {
  return scheme.weights && portable(*scheme.weights).observer_kwargs != scheme.weights->observer_kwargs;
}

OrderedJson without_nulls(const Json& object) {
  OrderedJson result = OrderedJson::object();
  for (const auto& [key, value] : object.items())
    if (!value.is_null() && value != Json::object()) result[key] = value;
  return result;
}

/// Writes groups in place of presets.
void describe_groups(const Groups& groups, OrderedJson& arguments) {
  OrderedJson described = OrderedJson::object();
  for (const auto& [name, scheme] : groups) {
    OrderedJson& group = described["group_" + std::to_string(described.size())];
    group["targets"] = scheme->targets;
    if (scheme->weights) group["weights"] = without_nulls(quant::to_json(portable(*scheme->weights)));
    if (scheme->input_activations)
      group["input_activations"] = without_nulls(quant::to_json(*scheme->input_activations));
  }
  for (const char* key : {"scheme", "targets", "weight_observer", "observer"}) arguments.erase(key);
  arguments["config_groups"] = std::move(described);
}

/// Says in the description of a group's weights how they were compressed.
void complete_group(const quant::QuantizationArgs& chosen, OrderedJson& weights) {
  const quant::QuantizationArgs written = portable(chosen);
  if (!written.observer_kwargs.empty()) weights["observer_kwargs"] = written.observer_kwargs;
  if (written.observer)
    weights["observer"] = *written.observer;
  else if (!json_has(weights, "observer"))
    weights.erase("observer");
  if (chosen.actorder)
    weights["actorder"] = *chosen.actorder;
  else
    weights.erase("actorder");
}

/// The same for a modifier whose groups are presets, which have one observer and one order.
void complete_presets(const quant::QuantizationArgs& chosen, OrderedJson& arguments) {
  if (!json_has(arguments, "observer") && !json_has(arguments, "weight_observer"))
    if (const auto observer = portable(chosen).observer) arguments["weight_observer"] = *observer;
  if (chosen.actorder && !arguments.contains("actorder")) arguments["actorder"] = *chosen.actorder;
}

/// Whether the groups that have weights agree in what the modifier would say for all of them.
bool agree(const Groups& groups) {
  const auto differs = [](const auto& one, const auto& other) {
    return one.scheme->weights && other.scheme->weights &&
           (one.scheme->weights->observer != other.scheme->weights->observer ||
            one.scheme->weights->actorder != other.scheme->weights->actorder);
  };
  return std::adjacent_find(groups.begin(), groups.end(), differs) == groups.end();
}

void complete(const Groups& groups, OrderedJson& arguments) {
  if (!json_has(arguments, "config_groups")) {
    if (std::any_of(groups.begin(), groups.end(), [](const auto& group) { return needs_group(*group.scheme); }))
      return describe_groups(groups, arguments);
    const bool any = !groups.empty() && groups.front().scheme->weights;
    if (any && agree(groups)) complete_presets(*groups.front().scheme->weights, arguments);
    return;
  }
  // What the modifier says for all groups is in each of them now.
  OrderedJson& described = arguments["config_groups"];
  for (const auto& [name, scheme] : groups)
    if (scheme->weights && described.contains(name) && json_has(described[name], "weights"))
      complete_group(*scheme->weights, described[name]["weights"]);
}

constexpr std::string_view kEarlier = "\n# The source was made by another recipe:\n";

/// Lines that end with \n, without empty ones at the end and without characters that no YAML may hold.
std::string plain_lines(const std::string& text) {
  std::string lines;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (c == '\r') {
      if (i + 1 == text.size() || text[i + 1] != '\n') lines += '\n';
    } else {
      const bool is_control = (c >= 0 && c < ' ' && c != '\n' && c != '\t') || c == '\x7f';
      lines += is_control ? '?' : c;
    }
  }
  lines.erase(lines.find_last_not_of(" \t\n") + 1);
  return lines.empty() ? lines : lines + "\n";
}

}  // namespace

std::string recipe_of(const OpenedModel& model) {
  constexpr std::uintmax_t kLongest = 1 << 20;
  if (model.file_metadata) {
    const auto* text = gguf::find_value<std::string>(*model.file_metadata, "layerpress.recipe");
    return text == nullptr ? "" : plain_lines(*text);
  }
  const std::filesystem::path folder = model.checkpoint->directory(), file = folder / "recipe.yaml";
  std::error_code failure;
  if (folder.empty() || !std::filesystem::exists(file, failure)) return "";
  const bool is_usual = std::filesystem::is_regular_file(file, failure) &&
                        std::filesystem::file_size(file, failure) <= kLongest && !failure;
  const std::string text = is_usual ? read_text_file(file) : "";
  return is_usual && is_utf8(text) ? plain_lines(text)
                                   : "the source's recipe.yaml, which is no text of a usual size:\n";
}

std::string with_earlier_recipe(const std::string& recipe, const OpenedModel& source) {
  const std::string earlier = recipe_of(source);
  if (earlier.empty()) return recipe;
  std::string text = recipe + std::string(kEarlier);
  std::istringstream lines(earlier);
  for (std::string line; std::getline(lines, line);) text += line.empty() ? "#\n" : "# " + line + "\n";
  return text;
}

std::string recipe_text(const OpenedModel& source, const recipe::Recipe& recipe, const Modifiers& modifiers) {
  return with_earlier_recipe(recipe::to_yaml(written_recipe(recipe, modifiers)), source);
}

std::string earlier_recipe(const std::string& text) {
  const std::size_t place = text.find(kEarlier);
  if (place == std::string::npos) return "";
  std::istringstream lines(text.substr(place + kEarlier.size()));
  std::string earlier;
  for (std::string line; std::getline(lines, line) && line.starts_with("#");)
    earlier += line.substr(std::min<std::size_t>(2, line.size())) + "\n";
  return earlier;
}

recipe::Recipe written_recipe(const recipe::Recipe& recipe, const Modifiers& modifiers) {
  recipe::Recipe written = recipe::with_inherited_schemes(recipe::with_separate_scaling(recipe));
  for (std::size_t i = 0; i < written.modifiers.size(); ++i)
    if (const auto* quantizer = dynamic_cast<const compression::Quantizer*>(modifiers[i].get()))
      complete(quantizer->scheme_groups(), written.modifiers[i].arguments);
  return written;
}

}  // namespace layerpress::setup
