// Writes a recipe as YAML that PyYAML (YAML 1.1) and yaml-cpp (1.2) read in the same way: strings are always quoted.
#include <algorithm>
#include <cctype>
#include <set>

#include "layerpress/base/text.h"
#include "layerpress/recipe/recipe.h"

namespace layerpress::recipe {
namespace {

bool is_plain_key(const std::string& key) {
  static const std::set<std::string> kWords{"null", "true", "false", "yes", "no", "on", "off"};
  if (key.empty() || std::isalpha(static_cast<unsigned char>(key[0])) == 0 || kWords.contains(lower_case(key)))
    return false;
  return std::all_of(key.begin(), key.end(),
                     [](unsigned char c) { return (c < 0x80 && std::isalnum(c) != 0) || c == '_'; });
}

/// A JSON string is also a YAML string, except that YAML allows neither raw DEL nor raw C1 control characters (U+0080
/// to U+009F).
std::string quoted(const std::string& text) {
  const std::string json = Json(text).dump(-1, ' ', false, Json::error_handler_t::replace);
  std::string result;
  for (std::size_t i = 0; i < json.size(); ++i) {
    const auto byte = static_cast<unsigned char>(json[i]);
    const unsigned next = i + 1 < json.size() ? static_cast<unsigned char>(json[i + 1]) : 0u;
    if (byte == 0x7f) {
      result += "\\x7F";
    } else if (byte == 0xc2 && next < 0xa0) {
      result += fmt::format("\\x{:02X}", next);
      ++i;
    } else {
      result += json[i];
    }
  }
  return result;
}

std::string key_text(const std::string& key) { return is_plain_key(key) ? key : quoted(key); }

/// YAML 1.1 reads an exponent as part of a number only after a point.
std::string number_text(const OrderedJson& number) {
  std::string text = number.dump();
  const std::size_t exponent = text.find('e');
  if (exponent != std::string::npos && text.find('.') == std::string::npos) text.insert(exponent, ".0");
  return text;
}

std::string inline_text(const OrderedJson& value) {
  if (value.is_string()) return quoted(value.get<std::string>());
  if (value.is_number()) return number_text(value);
  if (!value.is_structured()) return value.dump();
  std::string text = value.is_array() ? "[" : "{";
  for (auto item = value.begin(); item != value.end(); ++item) {
    if (item != value.begin()) text += ", ";
    if (value.is_object()) text += key_text(item.key()) + ": ";
    text += inline_text(*item);
  }
  return text + (value.is_array() ? "]" : "}");
}

void append_members(const OrderedJson& object, std::size_t indent, std::string& text) {
  for (const auto& [key, value] : object.items()) {
    text += std::string(indent, ' ') + key_text(key) + ":";
    if (value.is_object() && !value.empty()) {
      text += '\n';
      append_members(value, indent + 2, text);
    } else {
      text += ' ' + inline_text(value) + '\n';
    }
  }
}

void append_modifier(const ModifierEntry& entry, std::string& text) {
  text += "    " + key_text(entry.type) + ":";
  if (entry.arguments.empty()) {
    text += " {}\n";
    return;
  }
  text += '\n';
  append_members(entry.arguments, 6, text);
}

}  // namespace

std::string yaml_members(const OrderedJson& object) {
  std::string text;
  append_members(object, 0, text);
  return text;
}

std::string to_yaml(const Recipe& recipe) {
  std::string text = "default_stage:\n";
  // A mapping can have a type only once, so a repeated type begins another group; the order is unchanged.
  std::set<std::string> in_group;
  int group = -1;
  for (const ModifierEntry& entry : recipe.modifiers) {
    if (group < 0 || in_group.contains(entry.type)) {
      ++group;
      in_group.clear();
      text += group == 0 ? "  default_modifiers:\n" : fmt::format("  default_{}_modifiers:\n", group);
    }
    in_group.insert(entry.type);
    append_modifier(entry, text);
  }
  return text;
}

}  // namespace layerpress::recipe
