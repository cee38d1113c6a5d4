#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "layerpress/base/json.h"
#include "layerpress/compression/modifier.h"

namespace layerpress::modifier {

/// An argument of a modifier, with the values that it takes as Python writes their types.
struct Argument {
  std::string name;
  std::string type{};
};

/// A kind of modifier. A function beside the description of its arguments returns it.
struct Kind {
  std::string type;  ///< in recipes: "GPTQModifier"
  /// Makes one. Throws RecipeError naming `where`, and CheckpointError for an argument of a wrong type.
  std::function<std::unique_ptr<compression::Modifier>(const OrderedJson& arguments, const std::string& where)> make;
  std::vector<Argument> arguments;  ///< all but lifecycle_arguments()
};

/// Kind::make of a class.
template <typename Class>
std::unique_ptr<compression::Modifier> make(const OrderedJson& arguments, const std::string& where) {
  return std::make_unique<Class>(arguments, where);
}

/// The arguments of both lists, in order.
std::vector<Argument> joined(std::vector<Argument> first, const std::vector<Argument>& second);

/// A name or a list of names and `re:` patterns. Throws RecipeError naming `where` for anything else.
std::vector<std::string> names_or_none_in(const Json& value, const std::string& where);

/// The same, at least one.
std::vector<std::string> names_in(const Json& value, const std::string& where);

/// Fields that all modifiers of LLM Compressor have for runs that train, and that say nothing in one shot: index, group, start, end,
/// update, requires_calibration_data, four that it fills in itself, and two that older releases had (offload_hessians,
/// sequential_update). LLM Compressor writes some of them into a checkpoint's recipe.yaml.
std::vector<Argument> lifecycle_arguments();

/// Throws RecipeError for what is no mapping, for an argument that is neither among `known` nor a lifecycle argument, and for one of the
/// latter with a value that it does not take. Returns the lifecycle arguments that were given.
std::vector<std::string> check_arguments(const Json& arguments, const std::string& where,
                                         const std::vector<Argument>& known);

}  // namespace layerpress::modifier
