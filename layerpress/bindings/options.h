#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <limits>
#include <string>
#include <type_traits>
#include <vector>

#include "layerpress/base/json.h"

namespace layerpress::bindings {

/// What of Python's integers a field holds, for a value that is one; "" for other values and fields.
template <typename Field>
std::string range_of(const nanobind::object& value) {
  if constexpr (std::is_integral_v<Field> && !std::is_same_v<Field, bool>)
    if (nanobind::isinstance<nanobind::int_>(value) && !nanobind::isinstance<nanobind::bool_>(value))
      return fmt::format(" from {} to {}", std::numeric_limits<Field>::min(), std::numeric_limits<Field>::max());
  return "";
}

template <typename Field>
const char* python_type() {
  if constexpr (std::is_same_v<Field, bool>) return "bool";
  if constexpr (std::is_same_v<Field, std::vector<std::string>>) return "list[str]";
  if constexpr (std::is_same_v<Field, std::string>) return "str";
  if constexpr (std::is_same_v<Field, double>) return "float";
  return "int";
}

/// The options that a dictionary gives by the names of the command line. Throws UsageError for a value of another type and for an
/// unknown name.
template <typename Options>
Options options_from(const nanobind::dict& given) {
  Options options;
  std::size_t known = 0;
  Options::visit(options, [&](const char* name, auto& field, const char*) {
    if (!given.contains(name)) return;
    ++known;
    const nanobind::object value = given[name];
    using Field = std::decay_t<decltype(field)>;
    constexpr bool kTakesBool = std::is_same_v<Field, bool>;  // which is a number to Python
    if ((!kTakesBool && nanobind::isinstance<nanobind::bool_>(value)) ||
        !nanobind::try_cast(value, field, /*convert=*/true))
      throw UsageError("[options] --{}: expected {}{}, got {}", name, python_type<Field>(), range_of<Field>(value),
                       nanobind::cast<std::string>(nanobind::repr(value)));
  });
  if (known == given.size()) return options;
  for (const auto& [key, value] : given) {
    const auto name = nanobind::cast<std::string>(key);
    bool found = false;
    Options::visit(options, [&](const char* option, auto&, const char*) { found = found || name == option; });
    if (!found) throw UsageError("[options] unknown option {}", name);
  }
  return options;
}

/// Name, type, default and help of every option, in the order of the command line.
template <typename Options>
Json table_of() {
  Json table = Json::array();
  const Options options;
  Options::visit(options, [&](const char* name, const auto& value, const char* help) {
    using Field = std::remove_cvref_t<decltype(value)>;
    table.push_back({{"name", name}, {"type", python_type<Field>()}, {"default", value}, {"help", help}});
  });
  return table;
}

}  // namespace layerpress::bindings
