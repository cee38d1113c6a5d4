#include <algorithm>
#include <optional>

#include "layerpress/base/error.h"
#include "layerpress/base/text.h"
#include "layerpress/quant/container_format.h"

namespace layerpress::quant {

// Each is defined in the file with its name.
const ContainerFormat& float_quantized();
const ContainerFormat& int_quantized();
const ContainerFormat& mxfp4_pack_quantized();
const ContainerFormat& mxfp8_quantized();
const ContainerFormat& naive_quantized();
const ContainerFormat& nvfp4_pack_quantized();
const ContainerFormat& pack_quantized();

const std::vector<const ContainerFormat*>& container_formats() {
  static const std::vector<const ContainerFormat*> formats = {
      &mxfp4_pack_quantized(), &mxfp8_quantized(), &nvfp4_pack_quantized(), &int_quantized(),
      &pack_quantized(),       &float_quantized(), &naive_quantized()};
  return formats;
}

const ContainerFormat* find_container_format(const std::string& name) {
  const auto& formats = container_formats();
  const auto found = std::find_if(formats.begin(), formats.end(),
                                  [&](const ContainerFormat* format) { return format->name() == name; });
  return found == formats.end() ? nullptr : *found;
}

std::string shape_text(c10::IntArrayRef shape) {
  std::vector<std::string> sizes;
  for (const std::int64_t size : shape) sizes.push_back(std::to_string(size));
  return fmt::format("[{}]", join(sizes));
}

void ModuleReader::refuse(const std::string& suffix, const std::string& what) const {
  throw DamagedWeightsError("[quant.decompress] {}.{}: {}; the checkpoint is damaged or not what its config says",
                            module_, suffix, what);
}

at::Tensor ModuleReader::get(const std::string& suffix, at::ScalarType dtype) const {
  const std::optional<at::Tensor> tensor = find(suffix);
  if (!tensor) refuse(suffix, "the tensor is missing");
  if (tensor->scalar_type() != dtype)
    refuse(suffix,
           fmt::format("stored as {}, expected {}", c10::toString(tensor->scalar_type()), c10::toString(dtype)));
  return *tensor;
}

at::Tensor ModuleReader::get(const std::string& suffix, at::ScalarType dtype,
                             const std::vector<std::int64_t>& shape) const {
  const at::Tensor tensor = get(suffix, dtype);
  require_shape(suffix, tensor, shape);
  return tensor;
}

void ModuleReader::require_shape(const std::string& suffix, const at::Tensor& tensor,
                                 const std::vector<std::int64_t>& shape) const {
  if (tensor.sizes() != c10::IntArrayRef(shape))
    refuse(suffix, fmt::format("shape {}, expected {}", shape_text(tensor.sizes()), shape_text(shape)));
}

}  // namespace layerpress::quant
