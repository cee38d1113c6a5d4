#include "layerpress/quant/compressed_weight.h"

#include <ATen/ATen.h>

#include "layerpress/base/text.h"
#include "layerpress/kernels/finite.h"
#include "layerpress/quant/block_scheme.h"
#include "layerpress/quant/container_format.h"
#include "layerpress/quant/weight_numbers.h"

namespace layerpress::quant {
namespace {

using Shape = std::vector<std::int64_t>;

std::int64_t divide_up(std::int64_t value, std::int64_t by) { return (value + by - 1) / by; }

const QuantizationArgs& weights_of(const QuantizationScheme& scheme) {
  if (!scheme.weights) throw InternalError("[quant.compress] a scheme without weights has nothing to compress");
  return *scheme.weights;
}

const ContainerFormat& format_of(const QuantizationScheme& scheme) {
  const ContainerFormat* format = find_container_format(resolved_format(scheme));
  if (format == nullptr || !format->holds(weights_of(scheme)))
    throw InternalError("[quant.compress] format '{}' does not hold the scheme's weights", resolved_format(scheme));
  return *format;
}

void require_codes(const QuantizationArgs& args, const QuantizedWeight& weight) {
  const at::Tensor& codes = weight.codes;
  if (codes.dim() != 2 || codes.scalar_type() != code_dtype(args))
    throw InternalError("[quant.compress] codes are {} {}, not {} [rows, columns]", c10::toString(codes.scalar_type()),
                        shape_text(codes.sizes()), c10::toString(code_dtype(args)));
  if (args.type == NumberType::kFloat || args.num_bits == 8 || codes.numel() == 0) return;
  const auto [least, greatest] = at::aminmax(codes);
  if (least.item<int>() < args.minimum_code() || greatest.item<int>() > args.maximum_code())
    throw InternalError("[quant.compress] codes from {} to {} do not fit {} bits", least.item<int>(),
                        greatest.item<int>(), args.num_bits);
}

void require_scales(const QuantizationArgs& args, const QuantizedWeight& weight, const Shape& shape) {
  if (weight.scale.sizes() != c10::IntArrayRef(shape))
    throw InternalError("[quant.compress] scales have shape {}, not {}", shape_text(weight.scale.sizes()),
                        shape_text(shape));
  const at::ScalarType dtype = weight.scale.scalar_type();
  if (dtype != scale_dtype(args, dtype)) throw InternalError("[quant.compress] scales are {}", c10::toString(dtype));
  if (!kernels::all_finite(wide_scales(weight.scale, weight.global_scale)))
    throw RecipeError(
        "[quant.compress] a scale is NaN or infinite; look for NaN, infinite or huge weights in the checkpoint");
  if (has_global_scale(args) != weight.global_scale.defined())
    throw InternalError("[quant.compress] a global scale belongs to NVFP4 weights and only to them");
}

void require_parameters(const QuantizationArgs& args, const QuantizedWeight& weight) {
  const Shape shape = scale_shape(args, weight.codes.size(0), weight.codes.size(1));
  require_scales(args, weight, shape);
  if (args.symmetric == weight.zero_point.defined())
    throw InternalError("[quant.compress] zero points belong to asymmetric schemes and only to them");
  if (args.symmetric) return;
  if (weight.zero_point.sizes() != c10::IntArrayRef(shape) || weight.zero_point.scalar_type() != at::kChar)
    throw InternalError("[quant.compress] zero points are {} {}, not int8 {}",
                        c10::toString(weight.zero_point.scalar_type()), shape_text(weight.zero_point.sizes()),
                        shape_text(shape));
}

QuantizationScheme without_codes(const char* format) {
  QuantizationScheme scheme;
  scheme.format = format;
  return scheme;
}

/// Of a weight that is one tensor.
constexpr const char* kOnlySuffix = "weight";
/// Of the factor of blocks.
constexpr const char* kScaleSuffix = "scale";

std::int64_t block_row_bytes(const gguf::BlockType& type, std::int64_t columns) {
  if (columns % type.block_values() != 0)
    throw RecipeError("[quant.compress] {} stores {} values together, which do not divide {} columns", type.name(),
                      type.block_values(), columns);
  return type.row_bytes(columns);
}

std::vector<NamedTensor> write_blocks(const QuantizationScheme& scheme, const QuantizedWeight& weight) {
  if (weight.codes.scalar_type() != at::kByte || weight.codes.dim() != 2 || weight.scale.defined() ||
      weight.global_scale.defined() != scheme.scaled_blocks)
    throw InternalError("[quant.compress] a weight in blocks has their bytes, and a factor if the scheme says so");
  std::vector<NamedTensor> tensors = {{kOnlySuffix, weight.codes.to(at::kCPU).contiguous()}};
  if (scheme.scaled_blocks) tensors.push_back({kScaleSuffix, weight.global_scale.to(at::kCPU)});
  return tensors;
}

QuantizedWeight read_blocks(const QuantizationScheme& scheme, const ModuleReader& reader) {
  QuantizedWeight weight{.codes = reader.get(kOnlySuffix, at::kByte), .scale = {}, .zero_point = {}};
  if (scheme.scaled_blocks) weight.global_scale = reader.get(kScaleSuffix, at::kFloat);
  return weight;
}

const at::Tensor& finite_values(const QuantizedWeight& weight) {
  if (!at::isFloatingType(weight.codes.scalar_type()) || weight.scale.defined())
    throw InternalError("[quant.compress] a dense weight has values and nothing else");
  if (!kernels::all_finite(weight.codes))
    throw RecipeError("[quant.compress] an edited weight is NaN or infinite; raise the dampening");
  return weight.codes;
}

QuantizedWeight read_dense(const ModuleReader& reader) {
  const std::optional<at::Tensor> values = reader.find(kOnlySuffix);
  if (!values) reader.refuse(kOnlySuffix, "the tensor is missing");
  if (values->dim() != 2 || !at::isFloatingType(values->scalar_type()))
    reader.refuse(kOnlySuffix, "not a matrix of floating-point numbers");
  return {.codes = *values, .scale = {}, .zero_point = {}};
}

}  // namespace

std::vector<std::int64_t> scale_shape(const QuantizationArgs& weights, std::int64_t rows, std::int64_t columns) {
  if (weights.strategy == Strategy::kTensor) return {1};
  const ScaleBlock block = scale_block(weights, rows, columns);
  return {divide_up(rows, block.rows), divide_up(columns, block.columns)};
}

std::uint64_t quantized_bytes(const QuantizationArgs& weights, std::int64_t rows, std::int64_t columns,
                              at::ScalarType weight_dtype) {
  const Shape shape = scale_shape(weights, rows, columns);
  const std::int64_t scales = c10::multiply_integers(shape);
  const auto scale_bytes = static_cast<std::int64_t>(c10::elementSize(scale_dtype(weights, weight_dtype)));
  const std::int64_t per_scale = scale_bytes + (weights.symmetric ? 0 : 1);
  const std::int64_t global = has_global_scale(weights) ? sizeof(float) : 0;
  return static_cast<std::uint64_t>(rows * columns + scales * per_scale + global);  // a code is a byte
}

std::uint64_t quantized_bytes(const QuantizationScheme& scheme, std::int64_t rows, std::int64_t columns,
                              at::ScalarType weight_dtype) {
  if (is_unchanged(scheme)) return 0;
  if (const gguf::BlockType* type = block_type(scheme))
    return static_cast<std::uint64_t>(rows * block_row_bytes(*type, columns)) +
           (scheme.scaled_blocks ? sizeof(float) : 0);
  if (is_dense(scheme)) return static_cast<std::uint64_t>(rows * columns) * c10::elementSize(weight_dtype);
  return quantized_bytes(*scheme.weights, rows, columns, weight_dtype);
}

const QuantizationScheme& dense_scheme() {
  static const QuantizationScheme kScheme = without_codes(kDenseFormat);
  return kScheme;
}

const QuantizationScheme& unchanged_scheme() {
  static const QuantizationScheme kScheme = without_codes(kUnchangedFormat);
  return kScheme;
}

std::vector<NamedTensorSpec> compressed_layout(const QuantizationScheme& scheme, std::int64_t rows,
                                               std::int64_t columns, at::ScalarType weight_dtype) {
  if (is_unchanged(scheme)) return {};
  if (const gguf::BlockType* type = block_type(scheme)) {
    std::vector<NamedTensorSpec> specs = {{kOnlySuffix, at::kByte, {rows, block_row_bytes(*type, columns)}}};
    if (scheme.scaled_blocks) specs.push_back({kScaleSuffix, at::kFloat, {1}});
    return specs;
  }
  if (is_dense(scheme)) return {{kOnlySuffix, weight_dtype, {rows, columns}}};
  return format_of(scheme).layout(weights_of(scheme), rows, columns, weight_dtype);
}

std::vector<NamedTensor> compress(const QuantizationScheme& scheme, const QuantizedWeight& weight) {
  if (block_type(scheme) != nullptr) return write_blocks(scheme, weight);
  if (is_dense(scheme)) return {{kOnlySuffix, finite_values(weight).to(at::kCPU).contiguous()}};
  const QuantizationArgs& args = weights_of(scheme);
  require_codes(args, weight);
  require_parameters(args, weight);
  return format_of(scheme).write(args, weight);
}

QuantizedWeight decompress(const QuantizationScheme& scheme, const std::string& module,
                           const ModuleReader::Tensors& tensor) {
  if (block_type(scheme) != nullptr) return read_blocks(scheme, ModuleReader(module, tensor));
  if (is_dense(scheme)) return read_dense(ModuleReader(module, tensor));
  return format_of(scheme).read(weights_of(scheme), ModuleReader(module, tensor));
}

}  // namespace layerpress::quant
