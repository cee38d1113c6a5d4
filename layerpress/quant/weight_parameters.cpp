#include "layerpress/quant/weight_parameters.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <atomic>
#include <cmath>
#include <optional>

#include "layerpress/kernels/finite.h"
#include "layerpress/quant/weight_numbers.h"

namespace layerpress::quant {
namespace {

using Shape = std::vector<std::int64_t>;

/// Scales in the original's dtype, whatever that was.
at::Tensor read_float_scale(const QuantizationArgs& weights, const ModuleReader& reader, const Shape& shape) {
  const std::optional<at::Tensor> found = reader.find("weight_scale");
  if (!found) reader.refuse("weight_scale", "the tensor is missing");
  const at::ScalarType dtype = found->scalar_type();
  if (dtype != at::kFloat && dtype != at::kBFloat16 && dtype != at::kHalf)
    reader.refuse("weight_scale", fmt::format("stored as {}, expected a 16 or 32 bit float", c10::toString(dtype)));
  // Some writers store the one scale of a tensor without a dimension.
  at::Tensor scale = weights.strategy == Strategy::kTensor && found->dim() == 0 ? found->reshape({1}) : *found;
  reader.require_shape("weight_scale", scale, shape);
  if (const std::string fault = fault_of_scales(scale, scale_signs(weights)); !fault.empty())
    reader.refuse("weight_scale", fault);
  return scale;
}

at::Tensor read_e4m3_scale(const ModuleReader& reader, const Shape& shape) {
  at::Tensor scale = reader.get("weight_scale", at::kFloat8_e4m3fn, shape);
  if (const std::string fault = fault_of_scales(scale); !fault.empty()) reader.refuse("weight_scale", fault);
  return scale;
}

at::Tensor read_power_scale(const ModuleReader& reader, const Shape& shape) {
  at::Tensor scale = reader.get("weight_scale", at::kByte, shape);
  if (scale.eq(255).any().item<bool>()) reader.refuse("weight_scale", "holds NaN (the byte 255)");
  return scale;
}

at::Tensor read_global_scale(const ModuleReader& reader) {
  at::Tensor scale = reader.get("weight_global_scale", at::kFloat);
  if (scale.dim() == 0) scale = scale.reshape({1});
  reader.require_shape("weight_global_scale", scale, {1});
  const float value = scale.item<float>();
  if (!(value > 0) || !std::isfinite(value))
    reader.refuse("weight_global_scale", fmt::format("holds {}, which is not a positive number", value));
  return scale;
}

}  // namespace

ScaleSigns scale_signs(const QuantizationArgs& weights) {
  return weights.is_symmetric_integer() ? ScaleSigns::kAny : ScaleSigns::kPositive;
}

std::string fault_of_scales(const at::Tensor& scale, ScaleSigns signs) {
  if (scale.numel() == 0) return "";
  const bool is_fp8 =
      scale.scalar_type() == at::kFloat8_e4m3fn;  // without a copy: its bytes are ordered like its values
  if (is_fp8 ? holds_fp8_nan(scale) : !kernels::all_finite(scale)) return "holds NaN or infinity";
  const at::Tensor sizes = is_fp8 ? scale.view(at::kChar) : signs == ScaleSigns::kAny ? scale.abs() : scale;
  const double least = sizes.min().item<double>();
  if (least < 0) return "holds negative scales";
  return least == 0 && signs != ScaleSigns::kNotNegative ? "holds a scale of zero" : "";
}

bool holds_fp8_nan(const at::Tensor& codes) {
  const at::Tensor bytes = codes.contiguous();
  const auto* data = static_cast<const std::uint8_t*>(bytes.const_data_ptr());
  std::atomic<bool> found = false;
  constexpr std::int64_t kGrain = 1 << 16;
  at::parallel_for(0, bytes.numel(), kGrain, [&](std::int64_t begin, std::int64_t end) {
    unsigned any = 0;
    for (std::int64_t i = begin; i < end; ++i) any |= (data[i] & 0x7fu) == 0x7fu ? 1u : 0u;
    if (any != 0) found = true;
  });
  return found;
}

at::Tensor stored(const at::Tensor& tensor) { return tensor.to(at::kCPU).contiguous(); }

void add_scale_specs(const QuantizationArgs& weights, std::int64_t rows, std::int64_t columns,
                     at::ScalarType weight_dtype, std::vector<NamedTensorSpec>& specs) {
  specs.push_back({"weight_scale", scale_dtype(weights, weight_dtype), scale_shape(weights, rows, columns)});
  if (has_global_scale(weights)) specs.push_back({"weight_global_scale", at::kFloat, {1}});
}

void add_scales(const QuantizedWeight& weight, std::vector<NamedTensor>& tensors) {
  tensors.push_back({"weight_scale", stored(weight.scale)});
  if (weight.global_scale.defined()) tensors.push_back({"weight_global_scale", stored(weight.global_scale)});
}

void read_scales(const QuantizationArgs& weights, const ModuleReader& reader, const std::string& codes,
                 QuantizedWeight& weight) {
  const std::int64_t rows = weight.codes.size(0), columns = weight.codes.size(1);
  if (weights.group_size && *weights.group_size > 0 && columns % *weights.group_size != 0)
    reader.refuse(codes, fmt::format("{} columns do not divide into groups of {}", columns, *weights.group_size));
  const Shape shape = scale_shape(weights, rows, columns);
  switch (scale_dtype(weights, at::kFloat)) {
    case at::kFloat8_e4m3fn:
      weight.scale = read_e4m3_scale(reader, shape);
      weight.global_scale = read_global_scale(reader);
      break;
    case at::kByte:
      weight.scale = read_power_scale(reader, shape);
      break;
    default:
      weight.scale = read_float_scale(weights, reader, shape);
  }
}

void add_zero_point_specs(const QuantizationArgs& weights, std::int64_t rows, std::int64_t columns,
                          std::vector<NamedTensorSpec>& specs) {
  if (!weights.symmetric) specs.push_back({"weight_zero_point", at::kChar, scale_shape(weights, rows, columns)});
}

void add_zero_points(const QuantizedWeight& weight, std::vector<NamedTensor>& tensors) {
  if (weight.zero_point.defined()) tensors.push_back({"weight_zero_point", stored(weight.zero_point)});
}

void read_zero_points(const QuantizationArgs& weights, const ModuleReader& reader, QuantizedWeight& weight) {
  if (weights.symmetric) return refuse_zero_points(reader);
  const Shape shape = scale_shape(weights, weight.codes.size(0), weight.codes.size(1));
  weight.zero_point = reader.get("weight_zero_point", at::kChar, shape);
}

void refuse_zero_points(const ModuleReader& reader) {
  if (reader.find("weight_zero_point"))
    reader.refuse("weight_zero_point", "symmetric weights must not have zero points");
}

at::Tensor read_plain_codes(const QuantizationArgs& weights, const ModuleReader& reader) {
  at::Tensor codes = reader.get("weight", code_dtype(weights));
  if (codes.dim() != 2 || codes.numel() == 0)
    reader.refuse("weight", fmt::format("shape {}, expected [rows, columns]", shape_text(codes.sizes())));
  if (weights.type == NumberType::kFloat) {
    if (holds_fp8_nan(codes)) reader.refuse("weight", "holds NaN");
    return codes;
  }
  const auto [least, greatest] = at::aminmax(codes);
  if (least.item<int>() < weights.minimum_code() || greatest.item<int>() > weights.maximum_code())
    reader.refuse("weight",
                  fmt::format("holds codes outside {} to {}", weights.minimum_code(), weights.maximum_code()));
  return codes;
}

}  // namespace layerpress::quant
