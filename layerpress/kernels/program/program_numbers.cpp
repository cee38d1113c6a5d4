#include "layerpress/kernels/program/program_numbers.h"

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <type_traits>

#include "layerpress/base/error.h"

namespace layerpress::kernels {
namespace {

using Arguments = std::vector<c10::IValue>;

const c10::IValue& at_place(const Arguments& arguments, std::size_t place) {
  if (place >= arguments.size() || !arguments[place].isScalar())
    throw CheckpointError("[kernels.program] a function of numbers has the wrong arguments");
  return arguments[place];
}

double real(const Arguments& arguments, std::size_t place) { return at_place(arguments, place).toScalar().toDouble(); }

std::int64_t whole(const Arguments& arguments, std::size_t place) {
  return at_place(arguments, place).toScalar().toLong();
}

bool all_whole(const Arguments& arguments) {
  return std::none_of(arguments.begin(), arguments.end(), [](const c10::IValue& value) { return value.isDouble(); });
}

/// Rounds down, as Python does.
std::int64_t floor_divide(std::int64_t a, std::int64_t b) {
  if (b == 0) throw CheckpointError("[kernels.program] a size is divided by zero");
  const std::int64_t quotient = a / b;
  return a % b != 0 && (a < 0) != (b < 0) ? quotient - 1 : quotient;
}

/// A function of two numbers: of whole ones if both are.
template <typename Function>
c10::IValue of_both(const Arguments& arguments, Function&& function) {
  if (all_whole(arguments)) return function(whole(arguments, 0), whole(arguments, 1));
  return function(real(arguments, 0), real(arguments, 1));
}

/// Of whole numbers a whole one.
template <typename Number>
Number power(Number x, Number y) {
  const double result = std::pow(static_cast<double>(x), static_cast<double>(y));
  if constexpr (std::is_integral_v<Number>) return static_cast<Number>(std::llround(result));
  return result;
}

c10::IValue element(const Arguments& arguments) {
  if (arguments.size() != 2 || !arguments[1].isInt())
    throw CheckpointError("[kernels.program] getitem takes a list and a place");
  const std::int64_t place = arguments[1].toInt();
  const auto checked = [&](std::size_t size) {
    if (place < 0 || static_cast<std::size_t>(place) >= size)
      throw CheckpointError("[kernels.program] getitem: {} of {} is out of range", place, size);
    return static_cast<std::size_t>(place);
  };
  const c10::IValue& list = arguments[0];
  if (list.isTuple()) return list.toTupleRef().elements()[checked(list.toTupleRef().elements().size())];
  if (list.isTensorList()) {
    const auto tensors = list.toTensorList();
    return tensors.get(checked(tensors.size()));
  }
  if (list.isIntList()) {
    const auto numbers = list.toIntList();
    return numbers.get(checked(numbers.size()));
  }
  throw CheckpointError("[kernels.program] getitem takes a list");
}

}  // namespace

NumberFunction find_number_function(const std::string& name) {
  static const std::map<std::string, NumberFunction> kFunctions = {
      {"getitem", element},
      {"add", [](const Arguments& a) { return of_both(a, std::plus<>()); }},
      {"sub", [](const Arguments& a) { return of_both(a, std::minus<>()); }},
      {"mul", [](const Arguments& a) { return of_both(a, std::multiplies<>()); }},
      {"sym_max", [](const Arguments& a) { return of_both(a, [](auto x, auto y) { return std::max(x, y); }); }},
      {"sym_min", [](const Arguments& a) { return of_both(a, [](auto x, auto y) { return std::min(x, y); }); }},
      {"floordiv", [](const Arguments& a) { return c10::IValue(floor_divide(whole(a, 0), whole(a, 1))); }},
      {"mod",
       [](const Arguments& a) {
         return c10::IValue(whole(a, 0) - floor_divide(whole(a, 0), whole(a, 1)) * whole(a, 1));
       }},
      {"truediv", [](const Arguments& a) { return c10::IValue(real(a, 0) / real(a, 1)); }},
      {"pow", [](const Arguments& a) { return of_both(a, [](auto x, auto y) { return power(x, y); }); }},
      {"neg", [](const Arguments& a) { return all_whole(a) ? c10::IValue(-whole(a, 0)) : c10::IValue(-real(a, 0)); }},
      {"eq", [](const Arguments& a) { return c10::IValue(real(a, 0) == real(a, 1)); }},
      {"ne", [](const Arguments& a) { return c10::IValue(real(a, 0) != real(a, 1)); }},
      {"lt", [](const Arguments& a) { return c10::IValue(real(a, 0) < real(a, 1)); }},
      {"le", [](const Arguments& a) { return c10::IValue(real(a, 0) <= real(a, 1)); }},
      {"gt", [](const Arguments& a) { return c10::IValue(real(a, 0) > real(a, 1)); }},
      {"ge", [](const Arguments& a) { return c10::IValue(real(a, 0) >= real(a, 1)); }},
      {"sym_not", [](const Arguments& a) { return c10::IValue(real(a, 0) == 0); }},
      {"sym_float", [](const Arguments& a) { return c10::IValue(real(a, 0)); }},
      {"sym_int", [](const Arguments& a) { return c10::IValue(static_cast<std::int64_t>(real(a, 0))); }},
      {"trunc", [](const Arguments& a) { return c10::IValue(static_cast<std::int64_t>(std::trunc(real(a, 0)))); }},
      {"ceil", [](const Arguments& a) { return c10::IValue(static_cast<std::int64_t>(std::ceil(real(a, 0)))); }},
      {"floor", [](const Arguments& a) { return c10::IValue(static_cast<std::int64_t>(std::floor(real(a, 0)))); }},
  };
  const auto found = kFunctions.find(name);
  if (found == kFunctions.end())
    throw CheckpointError("[kernels.program] 'sym.{}' is not a function of numbers", name.substr(0, 40));
  return found->second;
}

}  // namespace layerpress::kernels
