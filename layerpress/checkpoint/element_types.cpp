#include "layerpress/checkpoint/element_types.h"

#include <algorithm>
#include <array>

#include "layerpress/base/error.h"
#include "layerpress/base/text.h"
#include "layerpress/checkpoint/safetensors.h"

namespace layerpress::checkpoint {
namespace {

struct ElementType {
  std::string_view name;
  at::ScalarType dtype;
};

constexpr std::array kElementTypes = {
    ElementType{"BF16", at::kBFloat16},
    ElementType{"F16", at::kHalf},
    ElementType{"F32", at::kFloat},
    ElementType{"F64", at::kDouble},
    ElementType{"F8_E4M3", at::kFloat8_e4m3fn},
    ElementType{"F8_E5M2", at::kFloat8_e5m2},
    ElementType{"F8_E8M0", at::kFloat8_e8m0fnu},
    ElementType{"I8", at::kChar},
    ElementType{"I16", at::kShort},
    ElementType{"I32", at::kInt},
    ElementType{"I64", at::kLong},
    ElementType{"U8", at::kByte},
    ElementType{"BOOL", at::kBool},
};

}  // namespace

std::string_view dtype_name(at::ScalarType dtype) {
  for (const ElementType& type : kElementTypes)
    if (type.dtype == dtype) return type.name;
  throw InternalError("[safetensors.dtype] element type {} cannot be stored in safetensors", at::toString(dtype));
}

void require_storable(const at::Tensor& tensor, const std::string& name, const char* place) {
  const auto refuse = [&](const std::string& fault) {
    throw CheckpointError("[{}] tensor {}: {}", place, in_quotes(name), fault);
  };
  if (!tensor.defined()) refuse("has no value");
  if (tensor.layout() != at::kStrided || tensor.is_meta()) refuse("is sparse or on the meta device; pass its values");
  if (std::none_of(kElementTypes.begin(), kElementTypes.end(),
                   [&](const ElementType& type) { return type.dtype == tensor.scalar_type(); }))
    refuse(fmt::format("its dtype {} cannot be in a checkpoint", c10::toString(tensor.scalar_type())));
}

std::optional<at::ScalarType> dtype_named(std::string_view name) {
  for (const ElementType& type : kElementTypes)
    if (type.name == name) return type.dtype;
  return std::nullopt;
}

std::string dtype_names() {
  std::string names;
  for (const ElementType& type : kElementTypes) names.append(names.empty() ? "" : " ").append(type.name);
  return names;
}

}  // namespace layerpress::checkpoint
