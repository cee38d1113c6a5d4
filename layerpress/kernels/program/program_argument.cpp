#include "layerpress/kernels/program/program_argument.h"

#include <ATen/ATen.h>
#include <ATen/ScalarOps.h>

#include <limits>

#include "layerpress/base/error.h"
#include "layerpress/kernels/program/tensor_program.h"

namespace layerpress::kernels {
namespace {

const c10::Type* without_optional(const c10::Type* type) {
  return type != nullptr && type->kind() == c10::TypeKind::OptionalType
             ? type->castRaw<c10::OptionalType>()->getElementType().get()
             : type;
}

c10::TypeKind kind_of(const c10::Type* type) { return type == nullptr ? c10::TypeKind::AnyType : type->kind(); }

[[noreturn]] void refuse(const Json& json) {
  throw CheckpointError("[kernels.program] {} is not an argument that its operator takes", json.dump().substr(0, 80));
}

double special_number(const std::string& name) {
  if (name == "inf") return std::numeric_limits<double>::infinity();
  if (name == "-inf") return -std::numeric_limits<double>::infinity();
  return std::numeric_limits<double>::quiet_NaN();
}

at::MemoryFormat memory_format(const std::string& name) {
  if (name == "contiguous_format") return at::MemoryFormat::Contiguous;
  if (name == "preserve_format") return at::MemoryFormat::Preserve;
  throw CheckpointError("[kernels.program] memory format '{}' is not known", name);
}

/// The constant that an object of one member stands for.
c10::IValue named_constant(const Json& json) {
  if (json.contains("f") && json["f"].is_string()) return special_number(json["f"].get<std::string>());
  if (json.contains("dtype") && json["dtype"].is_string())
    return static_cast<std::int64_t>(dtype_of_name(json["dtype"].get<std::string>()));
  if (json.contains("layout")) return static_cast<std::int64_t>(at::kStrided);
  if (json.contains("memory_format") && json["memory_format"].is_string())
    return static_cast<std::int64_t>(memory_format(json["memory_format"].get<std::string>()));
  refuse(json);
}

ProgramArgument read_list(const Json& json, const c10::Type* type,
                          const std::function<std::int64_t(const Json&)>& slot_of) {
  ProgramArgument argument;
  argument.kind = ProgramArgument::Kind::kList;
  const c10::Type* element = nullptr;
  if (kind_of(type) == c10::TypeKind::ListType) element = type->castRaw<c10::ListType>()->getElementType().get();
  if (element != nullptr) argument.element = element->kind();
  for (const Json& each : json) argument.list.push_back(read_program_argument(each, element, slot_of));
  return argument;
}

/// A number or text as an operator of this type takes it.
c10::IValue plain_constant(const Json& json, const c10::Type* type) {
  const c10::TypeKind kind = kind_of(type);
  if (json.is_boolean()) return json.get<bool>();
  if (json.is_string()) return json.get<std::string>();
  if (!json.is_number()) refuse(json);
  if (json.is_number_float() || kind == c10::TypeKind::FloatType) return json.get<double>();
  return json_integer(json);
}

/// Whether a value of this kind may stand where `wanted` does.
bool fits(const c10::IValue& value, c10::TypeKind wanted) {
  switch (wanted) {
    case c10::TypeKind::IntType:
    case c10::TypeKind::SymIntType:
      return value.isInt();
    case c10::TypeKind::FloatType:
      return value.isDouble();
    case c10::TypeKind::BoolType:
      return value.isBool();
    case c10::TypeKind::StringType:
      return value.isString();
    case c10::TypeKind::DeviceObjType:
      return false;
    case c10::TypeKind::NumberType:
    case c10::TypeKind::TensorType:
      return value.isInt() || value.isDouble() || value.isBool();
    default:
      return true;
  }
}

template <typename Element, typename Convert>
c10::List<Element> list_of(const std::vector<c10::IValue>& values, Convert&& convert) {
  c10::List<Element> list;
  list.reserve(values.size());
  for (const c10::IValue& value : values) list.push_back(convert(value));
  return list;
}

c10::IValue list_value(const std::vector<c10::IValue>& values, c10::TypeKind element) {
  const auto maybe_tensor = [](const c10::IValue& v) {
    return v.isNone() ? std::optional<at::Tensor>() : v.toTensor();
  };
  switch (element) {
    case c10::TypeKind::TensorType:
      return list_of<at::Tensor>(values, [](const c10::IValue& v) { return v.toTensor(); });
    case c10::TypeKind::OptionalType:
      return list_of<std::optional<at::Tensor>>(values, maybe_tensor);
    case c10::TypeKind::FloatType:
      return list_of<double>(values, [](const c10::IValue& v) { return v.toScalar().toDouble(); });
    case c10::TypeKind::BoolType:
      return list_of<bool>(values, [](const c10::IValue& v) { return v.toBool(); });
    case c10::TypeKind::NumberType:
      return list_of<at::Scalar>(values, [](const c10::IValue& v) { return v.toScalar(); });
    default:
      return list_of<std::int64_t>(values, [](const c10::IValue& v) { return v.toScalar().toLong(); });
  }
}

}  // namespace

void ProgramArgument::each_slot(const std::function<void(std::int64_t)>& visit) const {
  if (kind == Kind::kSlot) visit(slot);
  for (const ProgramArgument& each : list) each.each_slot(visit);
}

c10::IValue ProgramArgument::value(const std::vector<c10::IValue>& slots, at::Device device) const {
  switch (kind) {
    case Kind::kConstant:
      return constant;
    case Kind::kDevice:
      return device;
    case Kind::kSlot: {
      const c10::IValue& found = slots[static_cast<std::size_t>(slot)];
      if (!as_tensor || found.isTensor()) return found;
      return at::native::wrapped_scalar_tensor(found.toScalar());
    }
    case Kind::kList:
      break;
  }
  std::vector<c10::IValue> values;
  for (const ProgramArgument& each : list) values.push_back(each.value(slots, device));
  return list_value(values, element);
}

ProgramArgument read_program_argument(const Json& json, const c10::Type* type,
                                      const std::function<std::int64_t(const Json&)>& slot_of) {
  ProgramArgument argument;
  if (json.is_null()) {
    if (type != nullptr && type->kind() != c10::TypeKind::OptionalType) refuse(json);
    return argument;
  }
  const c10::Type* plain = without_optional(type);
  if (json.is_array()) {
    if (type != nullptr && kind_of(plain) != c10::TypeKind::ListType) refuse(json);
    return read_list(json, plain, slot_of);
  }
  const bool wants_tensor = kind_of(plain) == c10::TypeKind::TensorType;
  if (!json.is_object()) {
    argument.constant = plain_constant(json, plain);
    if (!fits(argument.constant, kind_of(plain))) refuse(json);
    if (wants_tensor) argument.constant = at::native::wrapped_scalar_tensor(argument.constant.toScalar());
    return argument;
  }
  if (json.contains("device")) {
    argument.kind = ProgramArgument::Kind::kDevice;
  } else if (json.contains("f") || json.contains("dtype") || json.contains("layout") ||
             json.contains("memory_format")) {
    argument.constant = named_constant(json);
  } else {
    argument.kind = ProgramArgument::Kind::kSlot;
    argument.slot = slot_of(json);
    argument.as_tensor = wants_tensor;
  }
  return argument;
}

}  // namespace layerpress::kernels
