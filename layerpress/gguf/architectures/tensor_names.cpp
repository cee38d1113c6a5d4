#include "layerpress/gguf/architectures/tensor_names.h"

#include <algorithm>
#include <charconv>
#include <string_view>

#include "layerpress/base/error.h"
#include "layerpress/base/text.h"

namespace layerpress::gguf {
namespace {

/// Of a module's tensors.
constexpr std::string_view kSuffixes[] = {"", ".weight", ".bias", ".scale"};

/// A checkpoint's name with # for its numbers, and the numbers.
struct NumberedName {
  std::string pattern;
  std::vector<std::int64_t> numbers;
};

std::optional<std::int64_t> number_of(std::string_view part) {
  std::int64_t number = 0;
  const auto [end, error] = std::from_chars(part.data(), part.data() + part.size(), number);
  if (part.empty() || error != std::errc() || end != part.data() + part.size() || number < 0) return std::nullopt;
  return number;
}

NumberedName numbered(std::string_view name) {
  NumberedName result;
  std::vector<std::string> parts = name_parts(name);
  for (std::string& part : parts)
    if (const auto number = number_of(part)) {
      result.numbers.push_back(*number);
      part = "#";
    }
  result.pattern = join(parts, ".");
  return result;
}

void replace_prefix(std::string& name, std::string_view prefix, std::string_view by) {
  if (name.starts_with(prefix)) name.replace(0, prefix.size(), by);
}

/// Why tensors beside the language model, and buffers that follow from config.json, are left out; "" for others.
std::string general_reason(const std::string& name) {
  if (name.ends_with(".rotary_emb.inv_freq") || name.ends_with(".attention.bias") ||
      name.ends_with(".attention.masked_bias"))
    return "readers compute it";
  if (name.starts_with("mtp.") || name.starts_with("model.mtp.")) return "a layer that predicts several tokens";
  for (const char* part : {"vision_tower.", "vision_model.", "visual.", "multi_modal_projector.", "connector.",
                           "image_newline", "audio_tower."}) {
    if (name.starts_with(part) || name.starts_with("model." + std::string(part)))
      return "not a part of the language model";
  }
  return "";
}

TensorPlace filled_in(TensorPlace place, const NumberedName& name, std::string_view suffix) {
  if (const std::size_t mark = place.name.find('#'); mark != std::string::npos)
    place.name.replace(mark, 1, std::to_string(name.numbers.at(0)));
  place.name += suffix;
  if (suffix == ".scale") place = {.name = place.name};
  if (name.numbers.size() > 1) place.expert = name.numbers[1];
  return place;
}

/// A name with numbers in place of #.
std::string with_numbers(std::string name, const std::vector<std::int64_t>& numbers) {
  std::size_t mark = 0;
  for (const std::int64_t number : numbers) {
    mark = name.find('#', mark);
    name.replace(mark, 1, std::to_string(number));
  }
  return name;
}

}  // namespace

std::string text_name(std::string name) {
  replace_prefix(name, "model.language_model.", "model.");
  replace_prefix(name, "model.text_model.", "model.");
  replace_prefix(name, "language_model.model.", "model.");
  replace_prefix(name, "language_model.lm_head.", "lm_head.");
  return name;
}

std::vector<TensorNames::Rule>& TensorNames::rules_for(const std::string& name) {
  const auto [found, is_new] = rules_.try_emplace(name);
  if (is_new) order_.push_back(name);
  return found->second;
}

void TensorNames::add(const std::string& name, TensorPlace place) {
  rules_for(name).push_back({.place = std::move(place)});
}

void TensorNames::add_with_bias(const std::string& name, TensorPlace place) {
  rules_for(name).push_back({.place = std::move(place), .bias = true});
}

void TensorNames::set_added(const std::string& name, float added) {
  for (Rule& rule : rules_.at(name)) rule.place.added = added;
}

bool TensorNames::has(const Rule& rule, std::string_view suffix) const {
  if (suffix == ".scale") return scaled_.contains(rule.place.name);
  return suffix != ".bias" || rule.bias;
}

bool TensorNames::has_scale(const std::string& tensor) const {
  constexpr std::string_view kWeight = ".weight";
  const std::string pattern = numbered(tensor).pattern;
  return pattern.ends_with(kWeight) && scaled_.contains(pattern.substr(0, pattern.size() - kWeight.size()));
}

Placement TensorNames::find(const std::string& full_name) const {
  const std::string name = text_name(full_name);
  if (const std::string reason = general_reason(name); !reason.empty()) return {.left_out = reason};
  const NumberedName parts = numbered(name);
  if (name.starts_with("model.layers.") && !parts.numbers.empty() && parts.numbers[0] >= num_layers_)
    return {.left_out = "a layer that predicts several tokens"};
  for (const std::string_view suffix : kSuffixes) {
    if (!parts.pattern.ends_with(suffix)) continue;
    const std::string key = parts.pattern.substr(0, parts.pattern.size() - suffix.size());
    if (const auto reason = left_out_.find(key); reason != left_out_.end()) return {.left_out = reason->second};
    const auto rules = rules_.find(key);
    if (rules == rules_.end()) continue;
    Placement placement;
    for (const Rule& rule : rules->second)
      if (has(rule, suffix)) placement.places.push_back(filled_in(rule.place, parts, suffix));
    if (!placement.places.empty()) return placement;
  }
  throw CheckpointError("[gguf.names] {}: llama.cpp has no tensor for it; write compressed-tensors instead", full_name);
}

std::vector<Origin> TensorNames::origins(const std::string& tensor, std::int64_t experts) const {
  NumberedName parts = numbered(tensor);
  if (parts.numbers.size() > 1 || (parts.numbers.size() == 1 && parts.numbers[0] >= num_layers_)) return {};
  for (const std::string& name : order_)
    for (const Rule& rule : rules_.at(name))
      for (const std::string_view suffix : kSuffixes) {
        if (parts.pattern != rule.place.name + std::string(suffix) || !has(rule, suffix)) continue;
        const bool stacked = std::count(name.begin(), name.end(), '#') > 1;
        std::vector<Origin> origins;
        for (std::int64_t expert = 0; expert < (stacked ? experts : 1); ++expert) {
          NumberedName numbers = parts;
          if (stacked) numbers.numbers.push_back(expert);
          origins.push_back(
              {with_numbers(name, numbers.numbers) + std::string(suffix), filled_in(rule.place, numbers, suffix)});
        }
        return origins;
      }
  return {};
}

}  // namespace layerpress::gguf
