#pragma once

#include <memory>
#include <string>
#include <vector>

#include "layerpress/base/json.h"
#include "layerpress/compression/modifier.h"
#include "layerpress/modifier/arguments/argument.h"

namespace layerpress::modifier {

/// Makes the modifier of a type, "GPTQModifier". Throws RecipeError: for a type of LLM Compressor that is not implemented
/// the message names what to use instead, for an unknown one the nearest known name.
std::unique_ptr<compression::Modifier> make_modifier(const std::string& type, const OrderedJson& arguments,
                                                     const std::string& where);

/// All that make_modifier supports.
const std::vector<Kind>& kinds();

/// Modifiers of LLM Compressor's recipes that make_modifier() refuses.
std::vector<std::string> not_implemented();

}  // namespace layerpress::modifier
