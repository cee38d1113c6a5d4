#include <algorithm>
#include <optional>

#include "layerpress/base/error.h"
#include "layerpress/base/text.h"
#include "layerpress/quant/containers/fp4_format.h"
#include "layerpress/quant/containers/plain_format.h"

namespace layerpress::quant {

/// Defined in the file with its name.
const ContainerFormat& pack_quantized(const FormatRules& rules);

namespace {

using Args = QuantizationArgs;
using Scheme = QuantizationScheme;

/// fp4 with a power of two per 32 columns: "weight_scale" U8 [rows, columns / 32], its exponent with 127 added.
constexpr FormatRules kMxfp4{
    "mxfp4-pack-quantized",
    [](const Args& weights) {
      return weights.is_float(4) && weights.strategy == Strategy::kGroup && weights.group_size == 32;
    },
    [](const Scheme& scheme) { return scheme.weights->is_float(4) && scheme.weights->group_size == 32; }};

bool holds_mxfp8(const Args& weights) {
  return weights.is_float(8) && weights.strategy == Strategy::kGroup && weights.group_size == 32 &&
         weights.scale_dtype == "torch.uint8";
}

/// fp8 with a power of two per 32 columns: "weight" F8_E4M3 [rows, columns], "weight_scale" U8 [rows, columns / 32].
constexpr FormatRules kMxfp8{"mxfp8-quantized", holds_mxfp8,
                             [](const Scheme& scheme) { return holds_mxfp8(*scheme.weights); }};

/// fp4 with an e4m3 scale per 16 columns, "weight_scale" F8_E4M3, that is divided by "weight_global_scale" F32 [1].
constexpr FormatRules kNvfp4{
    "nvfp4-pack-quantized",
    [](const Args& weights) {
      return weights.is_float(4) && weights.strategy == Strategy::kTensorGroup && weights.group_size == 16;
    },
    [](const Scheme& scheme) { return scheme.weights->is_float(4) && scheme.weights->group_size == 16; }};

bool holds_integers(const Args& weights) { return weights.type == NumberType::kInt && weights.num_bits <= 8; }

/// Schemes that vLLM's CompressedTensorsW4A8Fp8 runs.
bool is_packed_with_fp8_activations(const Args& weights, const Args& activations) {
  return weights.num_bits == 4 && weights.symmetric && weights.strategy == Strategy::kGroup &&
         weights.group_size == 128 && activations.is_float(8) && activations.strategy == Strategy::kToken &&
         activations.symmetric;
}

/// Integers of up to 8 bits, a byte each.
constexpr FormatRules kIntegerBytes{"int-quantized", holds_integers, [](const Scheme& scheme) {
                                      return scheme.weights->type == NumberType::kInt && scheme.input_activations &&
                                             !is_packed_with_fp8_activations(*scheme.weights,
                                                                             *scheme.input_activations);
                                    }};

/// Integers of up to 8 bits as dense bits.
constexpr FormatRules kPacked{"pack-quantized", holds_integers,
                              [](const Scheme& scheme) { return holds_integers(*scheme.weights); }};

/// fp8.
constexpr FormatRules kFp8{"float-quantized",
                           [](const Args& weights) { return weights.is_float(8) && !weights.scale_dtype; },
                           [](const Scheme& scheme) { return scheme.input_activations.has_value(); }};

/// fp8 and integers of up to 8 bits, whatever the activations are.
constexpr FormatRules kNaive{"naive-quantized",
                             [](const Args& weights) {
                               return weights.num_bits <= 8 &&
                                      (weights.type == NumberType::kInt || weights.num_bits == 8) &&
                                      !weights.scale_dtype;
                             },
                             [](const Scheme&) { return true; }};

}  // namespace

const std::vector<const ContainerFormat*>& container_formats() {
  static const Fp4Format mxfp4(kMxfp4), nvfp4(kNvfp4);
  static const PlainFormat mxfp8(kMxfp8), integers(kIntegerBytes), floats(kFp8), naive(kNaive);
  static const std::vector<const ContainerFormat*> formats = {
      &mxfp4, &mxfp8, &nvfp4, &integers, &pack_quantized(kPacked), &floats, &naive};
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
