#include "layerpress/modifier/arguments/argument.h"

#include <algorithm>

#include "layerpress/base/error.h"

namespace layerpress::modifier {

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

}  // namespace layerpress::modifier
