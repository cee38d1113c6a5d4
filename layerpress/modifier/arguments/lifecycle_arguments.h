#pragma once

#include <string>
#include <vector>

#include "layerpress/base/json.h"
#include "layerpress/modifier/arguments/argument.h"

namespace layerpress::modifier {

/// Whether `key` is a field that all modifiers of LLM Compressor have for runs that train, and that says nothing in one shot:
/// index, group, start, end, update, requires_calibration_data, four that it fills in itself, and two that older releases had
/// (offload_hessians, sequential_update). LLM Compressor writes some of them into a checkpoint's recipe.yaml. Throws
/// RecipeError when the value is none that the field takes.
bool is_lifecycle_argument(const std::string& key, const Json& value, const std::string& where);

/// Throws RecipeError for an argument that is neither among `known` nor a lifecycle argument. Returns the lifecycle arguments that
/// were given.
std::vector<std::string> check_arguments(const Json& arguments, const std::string& where,
                                         const std::vector<std::string>& known);

/// All of them, by name.
std::vector<Argument> lifecycle_arguments();

}  // namespace layerpress::modifier
