#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "layerpress/base/json.h"

namespace layerpress::recipe {

/// One modifier as the recipe names it, its arguments as JSON in the order of the file, which decides where targets overlap
/// (parsed by the modifier itself).
struct ModifierEntry {
  std::string type;  ///< "GPTQModifier"
  OrderedJson arguments = OrderedJson::object();
  std::string where;  ///< "recipe.yaml: quant_stage.quant_modifiers.GPTQModifier", for messages
};

/// An LLM Compressor recipe: modifiers in the order in which they run. Stages and groups only determine the order.
struct Recipe {
  std::vector<ModifierEntry> modifiers;
};

/// Reads a recipe file: .yaml/.yml, .json, or .md with YAML front matter. See parse_recipe.
Recipe read_recipe_file(const std::filesystem::path& path);

/// Parses YAML (or JSON, a subset) text with LLM Compressor's shape: `<name>_stage: {<name>_modifiers: {Type: {args}}}`.
/// Several stages and groups run in file order. Shapes which LLM Compressor accepts and then silently does nothing for
/// (modifiers without a stage, a bare modifier, a list of modifiers) are refused with what to write instead, so that a
/// recipe never yields no modifier. YAML scalars become JSON bool/int/float/null/string by YAML 1.1 core rules (quoted
/// stay strings); anchors work, aliases that explode and nesting deeper than 50 are refused. A word of compressed-tensors that
/// LLM Compressor wrote as a Python object (`!!python/object/apply:…ActivationOrdering [static]`) is that word. Throws
/// RecipeError with the line.
Recipe parse_recipe(const std::string& text, const std::string& where);

/// The recipe.yaml that goes into the output folder:
/// `default_stage: default_modifiers: <Type>: {...}`, arguments in their order, readable by LLM Compressor.
std::string to_yaml(const Recipe& recipe);

/// An object's members as YAML, for any reader.
std::string yaml_members(const OrderedJson& object);

}  // namespace layerpress::recipe
