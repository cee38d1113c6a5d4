#include <algorithm>
#include <utility>

#include "layerpress/base/json.h"
#include "tests/fuzz/dice.h"
#include "tests/fuzz/input.h"
#include "tests/fuzz/mutation.h"

namespace layerpress::fuzz {
namespace {

/// A value that hostile files have.
OrderedJson strange_value(Dice& dice) {
  switch (below(7, dice)) {
    case 0:
      return nullptr;
    case 1:
      return dice() % 2 == 0;
    case 2:
      return one_of(std::vector<double>{0.5, -0.0, 1e308, 1e-320, 1e19, 3.0000001}, dice);
    case 3:
      return one_of(std::vector<std::string>{"", "a", "-1", "../x", "/", "re:.*", "auto", std::string(300, 'x'),
                                             "\x1b[31m", "a\nb"},
                    dice);
    case 4:
      return dice() % 2 == 0 ? OrderedJson::array() : OrderedJson::array({1, "a", nullptr});
    case 5:
      return dice() % 2 == 0 ? OrderedJson::object() : OrderedJson::object({{"a", 1}});
    default:
      return one_of(integers(), dice);
  }
}

void collect(OrderedJson& value, std::vector<OrderedJson*>& all) {
  all.push_back(&value);
  if (value.is_structured())
    for (OrderedJson& inner : value) collect(inner, all);
}

/// Names of members, for others to have.
std::vector<std::string> names_in(const std::vector<OrderedJson*>& all) {
  std::vector<std::string> names;
  for (const OrderedJson* value : all)
    if (value->is_object())
      for (const auto& [name, inner] : value->items()) names.push_back(name);
  return names;
}

void change_number(OrderedJson& value, Dice& dice) {
  if (value.is_number_float())
    value = value.get<double>() * (dice() % 2 == 0 ? -1.0 : 1e10);
  else if (dice() % 2 == 0)
    value = one_of(integers(), dice);
  else
    value = static_cast<std::int64_t>(value.get<std::uint64_t>() + (dice() % 2 == 0 ? 1 : ~std::uint64_t{0}));
}

void change_members(OrderedJson& object, const std::vector<OrderedJson*>& all, Dice& dice) {
  const std::vector<std::string> names = names_in(all);
  auto member = object.begin();
  if (!object.empty()) std::advance(member, below(object.size(), dice));
  switch (object.empty() ? 0 : below(3, dice)) {
    case 0:
      object[names.empty() ? "a" : one_of(names, dice)] =
          dice() % 2 == 0 ? OrderedJson(*one_of(all, dice)) : strange_value(dice);
      break;
    case 1:
      object.erase(member);
      break;
    default: {
      OrderedJson kept = *member;
      object.erase(member);
      object[one_of(names, dice)] = std::move(kept);
    }
  }
}

void change_elements(OrderedJson& array, const std::vector<OrderedJson*>& all, Dice& dice) {
  const std::size_t place = array.empty() ? 0 : below(array.size(), dice);
  switch (array.empty() ? 0 : below(3, dice)) {
    case 0:
      array.push_back(dice() % 2 == 0 ? OrderedJson(*one_of(all, dice)) : strange_value(dice));
      break;
    case 1:
      array.erase(place);
      break;
    default:
      array.push_back(OrderedJson(array[place]));
  }
}

void change_text(std::string& text, const std::vector<OrderedJson*>& all, Dice& dice) {
  std::vector<std::string> others = names_in(all);
  for (const OrderedJson* value : all)
    if (value->is_string()) others.push_back(value->get<std::string>());
  const std::size_t place = text.empty() ? 0 : below(text.size(), dice);
  switch (text.empty() ? 0 : below(4, dice)) {
    case 0:
      text = one_of(others, dice);
      break;
    case 1:
      text.erase(place, 1);
      break;
    case 2:
      text[place] = static_cast<char>(below(128, dice));
      break;
    default:
      text.insert(place, text.substr(place, 1 + below(8, dice)));
  }
}

/// Changes one part of a value.
void change(OrderedJson& root, Dice& dice) {
  std::vector<OrderedJson*> all;
  collect(root, all);
  OrderedJson& value = *one_of(all, dice);
  const std::size_t way = below(4, dice);
  if (way == 0) {
    OrderedJson copy = dice() % 2 == 0 ? *one_of(all, dice) : strange_value(dice);
    value = std::move(copy);
  } else if (value.is_object()) {
    change_members(value, all, dice);
  } else if (value.is_array()) {
    change_elements(value, all, dice);
  } else if (value.is_string()) {
    change_text(value.get_ref<std::string&>(), all, dice);
  } else if (value.is_number()) {
    change_number(value, dice);
  } else {
    value = strange_value(dice);
  }
}

/// A JSON text with a change; empty if it is none.
std::string changed_json(std::string_view text, Dice& dice) {
  constexpr int kMostLevels = 100;
  if (!text.starts_with('{') && !text.starts_with('[')) return "";
  if (std::count(text.begin(), text.end(), '[') + std::count(text.begin(), text.end(), '{') > 20'000) return "";
  int depth = 0;
  for (const char character : text) {
    depth += character == '[' || character == '{' ? 1 : character == ']' || character == '}' ? -1 : 0;
    if (depth > kMostLevels) return "";
  }
  OrderedJson root = OrderedJson::parse(text.begin(), text.end(), nullptr, false);
  if (root.is_discarded()) return "";
  for (std::size_t changes = 1 + below(3, dice); changes > 0; --changes) change(root, dice);
  return root.dump(-1, ' ', false, OrderedJson::error_handler_t::replace);
}

/// JSON as a whole, or on one of the lines.
std::string changed_lines(std::string_view input, Dice& dice) {
  if (std::string whole = changed_json(input, dice); !whole.empty()) return whole;
  const std::vector<std::string_view> lines = lines_of(input);
  if (lines.empty() || lines.size() > 1000) return "";
  const std::size_t place = dice() % 2 == 0 ? 0 : below(lines.size(), dice);
  const std::string changed = changed_json(lines[place], dice);
  if (changed.empty()) return "";
  const auto offset = static_cast<std::size_t>(lines[place].data() - input.data());
  return std::string(input.substr(0, offset)) + changed + std::string(input.substr(offset + lines[place].size()));
}

}  // namespace

std::string changed_json_lines(std::string_view input, unsigned int seed) {
  Dice dice(seed);
  return changed_lines(input, dice);
}

}  // namespace layerpress::fuzz
