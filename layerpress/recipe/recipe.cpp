#include "layerpress/recipe/recipe.h"

#include <algorithm>
#include <system_error>

#include "layerpress/base/error.h"
#include "layerpress/base/file.h"
#include "layerpress/recipe/yaml_to_json.h"

namespace layerpress::recipe {
namespace {

constexpr std::uint64_t kLargestFile = 4u << 20;

constexpr const char* kShape =
    "a recipe is written `quant_stage:` / `quant_modifiers:` / `GPTQModifier:` / arguments, each indented below the "
    "last";

bool is_modifier_name(const std::string& key) { return key.ends_with("Modifier"); }

std::string kind_of(const OrderedJson& value) {
  if (value.is_null()) return "nothing";
  if (value.is_array()) return "a list";
  if (value.is_object()) return "a mapping";
  return fmt::format("'{}'", value.is_string() ? value.get<std::string>() : value.dump());
}

std::string first_line(const std::string& text) {
  const std::string line = text.substr(0, text.find('\n'));
  return line.size() <= 60 ? line : line.substr(0, 60) + "...";
}

[[noreturn]] void refuse(const std::string& where, const std::string& what) {
  throw RecipeError("[recipe.parse] {}: {}", where, what);
}

void parse_group(const std::string& where, const OrderedJson& group, Recipe& recipe) {
  if (group.is_array())
    refuse(where,
           "modifiers must be a mapping, found a list; write `GPTQModifier:` without a dash, and a repeated "
           "modifier in a group of its own such as `second_modifiers:`");
  if (!group.is_object())
    refuse(where, fmt::format("expected modifiers and their arguments, found {}", kind_of(group)));
  for (const auto& [type, arguments] : group.items()) {
    const std::string modifier_where = fmt::format("{}.{}", where, type);
    if (!arguments.is_null() && !arguments.is_object())
      refuse(modifier_where, fmt::format("arguments must be a mapping, found {}", kind_of(arguments)));
    recipe.modifiers.push_back({type, arguments.is_null() ? OrderedJson::object() : arguments, modifier_where});
  }
}

void parse_stage(const std::string& where, const OrderedJson& stage, Recipe& recipe) {
  if (stage.is_array())
    refuse(where,
           "a stage must be a mapping, found a list; write `quant_modifiers:` below it and the modifiers below that");
  if (!stage.is_object())
    refuse(where, fmt::format("expected groups such as `quant_modifiers:`, found {}", kind_of(stage)));
  for (const auto& [key, group] : stage.items()) {
    if (is_modifier_name(key))
      refuse(where, fmt::format("'{}' must be inside a group; put `quant_modifiers:` above it and indent it", key));
    if (key == "run_type" && group == "oneshot") continue;  // of older releases; there is no other type here
    if (!key.ends_with("_modifiers"))
      refuse(where, fmt::format("'{}' is not a group of modifiers; names of groups must end in _modifiers", key));
    parse_group(fmt::format("{}.{}", where, key), group, recipe);
  }
}

void parse_top(const std::string& where, const std::string& key, const OrderedJson& value, Recipe& recipe) {
  if (key.ends_with("_stage")) return parse_stage(where + ": " + key, value, recipe);
  if (key == "args") {
    if (value.empty()) return;
    refuse(where, "'args' has no effect here; write the values into the modifiers and remove it");
  }
  if (is_modifier_name(key))
    refuse(where, fmt::format("'{}' is outside a stage and would have no effect; {}", key, kShape));
  if (key.ends_with("_modifiers"))
    refuse(where,
           fmt::format("'{}' is outside a stage and would have no effect; put `quant_stage:` above it and indent it",
                       key));
  refuse(where, fmt::format("'{}' is not a stage; names of stages must end in _stage", key));
}

/// The front matter of a Markdown recipe card. Lines before it become empty lines, so that line numbers in messages are
/// right.
std::string front_matter(const std::string& text, const std::string& where) {
  std::string result;
  std::string fence;
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = std::min(text.find('\n', begin), text.size());
    std::string line = text.substr(begin, end - begin);
    if (line.ends_with('\r')) line.pop_back();
    begin = end + 1;
    if (fence.empty()) {
      if (line.find_first_not_of(" \t") != std::string::npos) {
        if (line != "---" && line != "+++") break;
        fence = line;
      }
      result += '\n';
    } else if (line == fence) {
      return result;
    } else {
      result += line + '\n';
    }
  }
  refuse(where, "a Markdown recipe begins with YAML between two lines `---`; none was found");
}

}  // namespace

Recipe read_recipe_file(const std::filesystem::path& path) {
  const std::string where = path.filename().string();
  std::error_code failure;
  const std::filesystem::file_status status = std::filesystem::status(path, failure);
  if (!std::filesystem::exists(status))
    throw RecipeError("[recipe.read] {}: no such file; give the path of a recipe", path.string());
  if (std::filesystem::is_directory(status))
    throw RecipeError("[recipe.read] {}: is a directory; give the path of a recipe", path.string());
  if (!std::filesystem::is_regular_file(status))
    throw RecipeError(
        "[recipe.read] {}: not a regular file, and a run reads its recipe more than once; write it to a file",
        path.string());
  std::string text;
  try {
    text = read_text_file(path, kLargestFile);
  } catch (const IoError& error) {
    throw RecipeError("[recipe.read] {}: {}", where, error.what());
  }
  return parse_recipe(path.extension() == ".md" ? front_matter(text, where) : text, where);
}

Recipe parse_recipe(const std::string& text, const std::string& where) {
  const OrderedJson document = yaml_to_json(text, where);
  if (document.is_null()) refuse(where, fmt::format("the recipe is empty; {}", kShape));
  if (!document.is_object())
    refuse(where, fmt::format("expected a mapping, found {}; {}",
                              document.is_array() ? "a list" : "the text '" + first_line(text) + "'", kShape));
  Recipe recipe;
  for (const auto& [key, value] : document.items()) parse_top(where, key, value, recipe);
  if (recipe.modifiers.empty())
    refuse(where, fmt::format("the recipe names no modifier, so nothing would be done; {}", kShape));
  return recipe;
}

}  // namespace layerpress::recipe
