#include "layerpress/quant/compressed_weight.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "layerpress/base/text.h"
#include "layerpress/kernels/finite.h"
#include "layerpress/quant/pack.h"

namespace layerpress::quant {
namespace {

using Shape = std::vector<std::int64_t>;
using Reader = std::function<std::optional<at::Tensor>(const std::string& suffix)>;

std::int64_t divide_up(std::int64_t value, std::int64_t by) { return (value + by - 1) / by; }

std::string shape_text(c10::IntArrayRef shape) {
  std::vector<std::string> sizes;
  for (const std::int64_t size : shape) sizes.push_back(std::to_string(size));
  return fmt::format("[{}]", join(sizes));
}

const QuantizationArgs& weights_of(const QuantizationScheme& scheme) {
  if (!scheme.weights) throw InternalError("[quant.compress] a scheme without weights has nothing to compress");
  return *scheme.weights;
}

bool is_packed(const QuantizationScheme& scheme) { return resolved_format(scheme) == "pack-quantized"; }

at::ScalarType code_dtype(const QuantizationArgs& args) {
  return args.type == NumberType::kFloat ? at::kFloat8_e4m3fn : at::kChar;
}

/// Zero points of groups and channels are packed along the rows of the weight; a single one is stored as it is.
bool packs_zero_point(const QuantizationScheme& scheme) {
  return is_packed(scheme) && scheme.weights->strategy != Strategy::kTensor;
}

Shape zero_point_shape(const QuantizationScheme& scheme, std::int64_t rows, std::int64_t columns) {
  Shape shape = scale_shape(*scheme.weights, rows, columns);
  if (packs_zero_point(scheme)) shape[0] = divide_up(rows * scheme.weights->num_bits, 32);
  return shape;
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

void require_parameters(const QuantizationArgs& args, const QuantizedWeight& weight) {
  const Shape shape = scale_shape(args, weight.codes.size(0), weight.codes.size(1));
  if (weight.scale.sizes() != c10::IntArrayRef(shape))
    throw InternalError("[quant.compress] scales have shape {}, not {}", shape_text(weight.scale.sizes()),
                        shape_text(shape));
  if (!kernels::all_finite(weight.scale))
    throw RecipeError(
        "[quant.compress] a scale is NaN or infinite; look for NaN, infinite or huge weights in the checkpoint");
  if (args.symmetric == weight.zero_point.defined())
    throw InternalError("[quant.compress] zero points belong to asymmetric schemes and only to them");
  if (args.symmetric) return;
  if (weight.zero_point.sizes() != c10::IntArrayRef(shape) || weight.zero_point.scalar_type() != at::kChar)
    throw InternalError("[quant.compress] zero points are {} {}, not int8 {}",
                        c10::toString(weight.zero_point.scalar_type()), shape_text(weight.zero_point.sizes()),
                        shape_text(shape));
}

at::Tensor stored(const at::Tensor& tensor) { return tensor.to(at::kCPU).contiguous(); }

at::Tensor stored_zero_point(const QuantizationScheme& scheme, const at::Tensor& zero_point) {
  if (!packs_zero_point(scheme)) return stored(zero_point);
  return pack_int32(zero_point.t(), scheme.weights->num_bits).t().contiguous();
}

/// Reads the tensors of one module; every complaint names the module and the tensor.
class ModuleReader {
 public:
  ModuleReader(const std::string& module, const Reader& read) : module_(module), read_(read) {}

  [[noreturn]] void refuse(const std::string& suffix, const std::string& what) const {
    throw CheckpointError("[quant.decompress] {}.{}: {}; the checkpoint is damaged or not what its config says",
                          module_, suffix, what);
  }

  std::optional<at::Tensor> find(const std::string& suffix) const { return read_(suffix); }

  at::Tensor get(const std::string& suffix, at::ScalarType dtype) const {
    const std::optional<at::Tensor> tensor = read_(suffix);
    if (!tensor) refuse(suffix, "the tensor is missing");
    if (tensor->scalar_type() != dtype)
      refuse(suffix,
             fmt::format("stored as {}, expected {}", c10::toString(tensor->scalar_type()), c10::toString(dtype)));
    return *tensor;
  }

  at::Tensor get(const std::string& suffix, at::ScalarType dtype, const Shape& shape) const {
    const at::Tensor tensor = get(suffix, dtype);
    require_shape(suffix, tensor, shape);
    return tensor;
  }

  void require_shape(const std::string& suffix, const at::Tensor& tensor, const Shape& shape) const {
    if (tensor.sizes() != c10::IntArrayRef(shape))
      refuse(suffix, fmt::format("shape {}, expected {}", shape_text(tensor.sizes()), shape_text(shape)));
  }

 private:
  const std::string& module_;
  const Reader& read_;
};

std::array<std::int64_t, 2> read_weight_shape(const ModuleReader& reader) {
  const std::optional<at::Tensor> found = reader.find("weight_shape");
  if (!found) reader.refuse("weight_shape", "the tensor is missing");
  if (found->scalar_type() != at::kLong && found->scalar_type() != at::kInt)
    reader.refuse("weight_shape", fmt::format("stored as {}, expected Long", c10::toString(found->scalar_type())));
  reader.require_shape("weight_shape", *found, {2});
  const at::Tensor sizes = found->to(at::kLong).contiguous();
  const auto* data = sizes.const_data_ptr<std::int64_t>();
  if (data[0] < 1 || data[1] < 1) reader.refuse("weight_shape", fmt::format("holds [{}, {}]", data[0], data[1]));
  return {data[0], data[1]};
}

at::Tensor read_packed_codes(const QuantizationArgs& args, const ModuleReader& reader) {
  const auto [rows, columns] = read_weight_shape(reader);
  const at::Tensor packed = reader.get("weight_packed", at::kInt);
  if (packed.dim() != 2 || packed.size(0) != rows)
    reader.refuse("weight_packed", fmt::format("shape {}, expected {} rows", shape_text(packed.sizes()), rows));
  try {
    return unpack_int32(packed, args.num_bits, columns);
  } catch (const CheckpointError& error) {
    reader.refuse("weight_packed", error.what());
  }
}

/// Row range by row range, so that masks of the weight's size are never held.
bool holds_fp8_nan(const at::Tensor& codes) {
  const std::int64_t rows = codes.size(0), step = std::max<std::int64_t>(1, (1 << 20) / codes.size(1));
  for (std::int64_t first = 0; first < rows; first += step) {
    const at::Tensor bytes = codes.narrow(0, first, std::min(step, rows - first)).view(at::kByte);
    if (bytes.bitwise_and(0x7f).eq_(0x7f).any().item<bool>()) return true;
  }
  return false;
}

at::Tensor read_plain_codes(const QuantizationArgs& args, const ModuleReader& reader) {
  const at::Tensor codes = reader.get("weight", code_dtype(args));
  if (codes.dim() != 2 || codes.numel() == 0)
    reader.refuse("weight", fmt::format("shape {}, expected [rows, columns]", shape_text(codes.sizes())));
  if (args.type == NumberType::kFloat) {
    if (holds_fp8_nan(codes)) reader.refuse("weight", "holds NaN");
    return codes;
  }
  const auto [least, greatest] = at::aminmax(codes);
  if (least.item<int>() < args.minimum_code() || greatest.item<int>() > args.maximum_code())
    reader.refuse("weight", fmt::format("holds codes outside {} to {}", args.minimum_code(), args.maximum_code()));
  return codes;
}

at::Tensor read_scale(const QuantizationArgs& args, const ModuleReader& reader, const Shape& shape) {
  const std::optional<at::Tensor> found = reader.find("weight_scale");
  if (!found) reader.refuse("weight_scale", "the tensor is missing");
  const at::ScalarType dtype = found->scalar_type();
  if (dtype != at::kFloat && dtype != at::kBFloat16 && dtype != at::kHalf)
    reader.refuse("weight_scale", fmt::format("stored as {}, expected a 16 or 32 bit float", c10::toString(dtype)));
  // Some writers store the one scale of a tensor without a dimension.
  const at::Tensor scale = args.strategy == Strategy::kTensor && found->dim() == 0 ? found->reshape({1}) : *found;
  reader.require_shape("weight_scale", scale, shape);
  if (!kernels::all_finite(scale)) reader.refuse("weight_scale", "holds NaN or infinity");
  return scale;
}

at::Tensor read_zero_point(const QuantizationScheme& scheme, const ModuleReader& reader, std::int64_t rows,
                           std::int64_t columns) {
  const Shape shape = zero_point_shape(scheme, rows, columns);
  if (!packs_zero_point(scheme)) return reader.get("weight_zero_point", at::kChar, shape);
  const at::Tensor packed = reader.get("weight_zero_point", at::kInt, shape);
  return unpack_int32(packed.t(), scheme.weights->num_bits, rows).t().contiguous();
}

}  // namespace

std::vector<std::int64_t> scale_shape(const QuantizationArgs& weights, std::int64_t rows, std::int64_t columns) {
  if (weights.strategy == Strategy::kTensor) return {1};
  const ScaleBlock block = scale_block(weights, rows, columns);
  return {divide_up(rows, block.rows), divide_up(columns, block.columns)};
}

std::uint64_t quantized_bytes(const QuantizationArgs& weights, std::int64_t rows, std::int64_t columns,
                              at::ScalarType scale_dtype) {
  const Shape shape = scale_shape(weights, rows, columns);
  const std::int64_t scales = c10::multiply_integers(shape);
  const std::int64_t per_scale = static_cast<std::int64_t>(c10::elementSize(scale_dtype)) + (weights.symmetric ? 0 : 1);
  return static_cast<std::uint64_t>(rows * columns + scales * per_scale);  // a code is a byte
}

std::vector<CompressedTensorSpec> compressed_layout(const QuantizationScheme& scheme, std::int64_t rows,
                                                    std::int64_t columns, at::ScalarType scale_dtype) {
  const QuantizationArgs& args = weights_of(scheme);
  std::vector<CompressedTensorSpec> layout;
  if (is_packed(scheme))
    layout.push_back({"weight_packed", at::kInt, {rows, divide_up(columns * args.num_bits, 32)}});
  else
    layout.push_back({"weight", code_dtype(args), {rows, columns}});
  layout.push_back({"weight_scale", scale_dtype, scale_shape(args, rows, columns)});
  if (is_packed(scheme)) layout.push_back({"weight_shape", at::kLong, {2}});
  if (!args.symmetric)
    layout.push_back({"weight_zero_point", packs_zero_point(scheme) ? at::kInt : at::kChar,
                      zero_point_shape(scheme, rows, columns)});
  return layout;
}

std::vector<std::pair<std::string, at::Tensor>> compress(const QuantizationScheme& scheme,
                                                         const QuantizedWeight& weight) {
  const QuantizationArgs& args = weights_of(scheme);
  require_codes(args, weight);
  require_parameters(args, weight);
  std::vector<std::pair<std::string, at::Tensor>> tensors;
  if (is_packed(scheme))
    tensors.emplace_back("weight_packed", pack_int32(weight.codes, args.num_bits));
  else
    tensors.emplace_back("weight", stored(weight.codes));
  tensors.emplace_back("weight_scale", stored(weight.scale));
  if (is_packed(scheme)) tensors.emplace_back("weight_shape", at::tensor(weight.codes.sizes(), at::kLong));
  if (!args.symmetric) tensors.emplace_back("weight_zero_point", stored_zero_point(scheme, weight.zero_point));
  return tensors;
}

QuantizedWeight decompress(const QuantizationScheme& scheme, const std::string& module, const Reader& tensor) {
  const QuantizationArgs& args = weights_of(scheme);
  const ModuleReader reader(module, tensor);
  QuantizedWeight weight;
  weight.codes = is_packed(scheme) ? read_packed_codes(args, reader) : read_plain_codes(args, reader);
  const std::int64_t rows = weight.codes.size(0);
  const std::int64_t columns = weight.codes.size(1);
  if (args.strategy == Strategy::kGroup && columns % *args.group_size != 0)
    reader.refuse(is_packed(scheme) ? "weight_packed" : "weight",
                  fmt::format("{} columns do not divide into groups of {}", columns, *args.group_size));
  weight.scale = read_scale(args, reader, scale_shape(args, rows, columns));
  if (!args.symmetric)
    weight.zero_point = read_zero_point(scheme, reader, rows, columns);
  else if (reader.find("weight_zero_point"))
    reader.refuse("weight_zero_point", "symmetric weights have none");
  return weight;
}

}  // namespace layerpress::quant
