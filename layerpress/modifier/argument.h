#pragma once

#include <string>
#include <vector>

namespace layerpress::modifier {

/// An argument of a modifier, with the values that it takes as Python writes their types.
struct Argument {
  std::string name;
  std::string type;
};

inline std::vector<std::string> names_of(const std::vector<Argument>& arguments) {
  std::vector<std::string> names;
  for (const Argument& argument : arguments) names.push_back(argument.name);
  return names;
}

}  // namespace layerpress::modifier
