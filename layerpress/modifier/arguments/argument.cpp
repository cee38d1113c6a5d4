#include "layerpress/modifier/arguments/argument.h"

#include <algorithm>
#include <map>

#include "layerpress/base/error.h"
#include "layerpress/base/text.h"

namespace layerpress::modifier {
namespace {

struct Field {
  std::function<bool(const Json&)> takes;
  const char* rule;
  const char* type;
};

const std::map<std::string, Field>& fields() {
  static const Field kNumber{[](const Json& value) { return value.is_null() || value.is_number(); },
                             "it must be a number or null", "float | None"};
  static const Field kFlag{[](const Json& value) { return value.is_boolean(); }, "it must be true or false", "bool"};
  // Set, it would mean a modifier that has run already.
  static const Field kState{[](const Json& value) { return value == Json(false); }, "it must be false", "bool"};
  static const std::map<std::string, Field> kAll{
      {"index",
       {[](const Json& value) { return value.is_null() || value.is_number_integer(); },
        "it must be a whole number or null", "int | None"}},
      {"group",
       {[](const Json& value) { return value.is_null() || value.is_string(); }, "it must be a name or null",
        "str | None"}},
      {"start", kNumber},
      {"end", kNumber},
      {"update", kNumber},
      {"requires_calibration_data", kFlag},
      {"offload_hessians", kFlag},
      {"sequential_update", kFlag},
      {"initialized_", kState},
      {"finalized_", kState},
      {"started_", kState},
      {"ended_", kState},
  };
  return kAll;
}

/// Throws RecipeError if the value is none that the field takes.
bool is_lifecycle_argument(const std::string& key, const Json& value, const std::string& where) {
  const auto field = fields().find(key);
  if (field == fields().end()) return false;
  if (!field->second.takes(value))
    throw RecipeError("[recipe.modifier] {}: {} is {}; {}", where, key,
                      value.dump(-1, ' ', false, Json::error_handler_t::replace), field->second.rule);
  return true;
}

}  // namespace

std::vector<Argument> joined(std::vector<Argument> first, const std::vector<Argument>& second) {
  first.insert(first.end(), second.begin(), second.end());
  return first;
}

std::vector<std::string> names_or_none_in(const Json& value, const std::string& where) {
  if (value.is_string()) return {value.get<std::string>()};
  if (!value.is_array() ||
      !std::all_of(value.begin(), value.end(), [](const Json& entry) { return entry.is_string(); }))
    throw RecipeError("[recipe.modifier] {} must be a name or a list of names, is {}", where,
                      value.dump(-1, ' ', false, Json::error_handler_t::replace).substr(0, 80));
  return value.get<std::vector<std::string>>();
}

std::vector<std::string> names_in(const Json& value, const std::string& where) {
  std::vector<std::string> names = names_or_none_in(value, where);
  if (names.empty()) throw RecipeError("[recipe.modifier] {} is empty; name modules", where);
  return names;
}

std::vector<Argument> lifecycle_arguments() {
  std::vector<Argument> arguments;
  for (const auto& [name, field] : fields()) arguments.push_back({name, field.type});
  return arguments;
}

std::vector<std::string> check_arguments(const Json& arguments, const std::string& where,
                                         const std::vector<Argument>& known) {
  if (!arguments.is_object()) throw RecipeError("[recipe.modifier] {}: the arguments are not a mapping", where);
  std::vector<std::string> names;
  for (const Argument& argument : known) names.push_back(argument.name);
  std::vector<std::string> without_effect;
  for (const auto& [key, value] : arguments.items()) {
    if (std::find(names.begin(), names.end(), key) != names.end()) continue;
    if (is_lifecycle_argument(key, value, where)) {
      if (!value.is_null()) without_effect.push_back(key);
      continue;
    }
    throw RecipeError("[recipe.modifier] {}: unknown argument '{}'; {}", where, key, nearest_or_all(key, names));
  }
  return without_effect;
}

}  // namespace layerpress::modifier
