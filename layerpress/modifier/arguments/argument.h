#pragma once

#include <string>
#include <vector>

#include "layerpress/base/json.h"

namespace layerpress::modifier {

/// An argument of a modifier, with the values that it takes as Python writes their types.
struct Argument {
  std::string name;
  std::string type;
};

/// A name or a list of names and `re:` patterns. Throws RecipeError naming `where` for anything else.
std::vector<std::string> names_or_none_in(const Json& value, const std::string& where);

/// The same, at least one.
std::vector<std::string> names_in(const Json& value, const std::string& where);

inline std::vector<std::string> names_of(const std::vector<Argument>& arguments) {
  std::vector<std::string> names;
  for (const Argument& argument : arguments) names.push_back(argument.name);
  return names;
}

}  // namespace layerpress::modifier
