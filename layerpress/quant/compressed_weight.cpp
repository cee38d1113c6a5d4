#include "layerpress/quant/compressed_weight.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <ATen/ThreadLocalState.h>

#include <algorithm>

#include "layerpress/base/text.h"
#include "layerpress/quant/pack.h"

namespace layerpress::quant {
namespace {

using Shape = std::vector<std::int64_t>;
using Reader = std::function<std::optional<at::Tensor>(const std::string& suffix)>;

/// Elements that dequantize holds in fp32 at once: what stays in a CPU's cache, or enough to fill a GPU.
std::int64_t elements_at_once(const at::Tensor& codes) { return codes.is_cpu() ? 1 << 15 : 1 << 24; }

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
  if (!at::isfinite(weight.scale).all().item<bool>())
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

at::Tensor read_plain_codes(const QuantizationArgs& args, const ModuleReader& reader) {
  const at::Tensor codes = reader.get("weight", code_dtype(args));
  if (codes.dim() != 2 || codes.numel() == 0)
    reader.refuse("weight", fmt::format("shape {}, expected [rows, columns]", shape_text(codes.sizes())));
  if (args.type == NumberType::kFloat) {
    const at::Tensor magnitude = codes.view(at::kByte).bitwise_and(0x7f);
    if (magnitude.eq(0x7f).any().item<bool>()) reader.refuse("weight", "holds NaN");
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
  if (!at::isfinite(scale).all().item<bool>()) reader.refuse("weight_scale", "holds NaN or infinity");
  return scale;
}

at::Tensor read_zero_point(const QuantizationScheme& scheme, const ModuleReader& reader, std::int64_t rows,
                           std::int64_t columns) {
  const Shape shape = zero_point_shape(scheme, rows, columns);
  if (!packs_zero_point(scheme)) return reader.get("weight_zero_point", at::kChar, shape);
  const at::Tensor packed = reader.get("weight_zero_point", at::kInt, shape);
  return unpack_int32(packed.t(), scheme.weights->num_bits, rows).t().contiguous();
}

struct RowRange {
  std::int64_t first = 0;
  std::int64_t count = 0;
};

/// Ranges of rows that are dequantized at a time. A range stays inside one row of blocks, so that it has either one row of
/// scales per row or one for all of its rows.
std::vector<RowRange> row_ranges(const at::Tensor& codes, std::int64_t block_rows) {
  const std::int64_t rows = codes.size(0);
  const std::int64_t at_once = std::max<std::int64_t>(1, elements_at_once(codes) / codes.size(1));
  std::vector<RowRange> ranges;
  for (std::int64_t first = 0; first < rows; first += ranges.back().count) {
    const std::int64_t limit = block_rows == 1 ? rows : std::min(rows, (first / block_rows + 1) * block_rows);
    ranges.push_back({first, std::min(at_once, limit - first)});
  }
  return ranges;
}

/// Scales or zero points of a range in fp32, [count or 1, columns of blocks].
at::Tensor rows_of(const at::Tensor& parameters, const RowRange& range, std::int64_t block_rows) {
  return (block_rows == 1 ? parameters.narrow(0, range.first, range.count)
                          : parameters.narrow(0, range.first / block_rows, 1))
      .to(at::kFloat);
}

/// The values of a range in fp32.
at::Tensor scaled_rows(const QuantizedWeight& weight, const RowRange& range, const ScaleBlock& block) {
  const std::int64_t columns = weight.codes.size(1);
  const at::Tensor scale = rows_of(weight.scale, range, block.rows);
  at::Tensor values = weight.codes.narrow(0, range.first, range.count).to(at::kFloat);
  // Columns that do not fill the last block are only possible with 2-d blocks, which come without zero points.
  if (columns % block.columns != 0) return values.mul_(scale.repeat_interleave(block.columns, 1).narrow(1, 0, columns));
  at::Tensor blocks = values.view({range.count, columns / block.columns, block.columns});
  if (weight.zero_point.defined()) blocks.sub_(rows_of(weight.zero_point, range, block.rows).unsqueeze(-1));
  blocks.mul_(scale.unsqueeze(-1));
  return values;
}

}  // namespace

std::vector<std::int64_t> scale_shape(const QuantizationArgs& weights, std::int64_t rows, std::int64_t columns) {
  if (weights.strategy == Strategy::kTensor) return {1};
  const ScaleBlock block = scale_block(weights, rows, columns);
  return {divide_up(rows, block.rows), divide_up(columns, block.columns)};
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

at::Tensor dequantize(const QuantizationScheme& scheme, const QuantizedWeight& weight, at::ScalarType dtype) {
  const QuantizationArgs& args = weights_of(scheme);
  const std::int64_t rows = weight.codes.size(0);
  const std::int64_t columns = weight.codes.size(1);
  at::Tensor result = at::empty({rows, columns}, weight.codes.options().dtype(dtype));
  if (result.numel() == 0) return result;
  const ScaleBlock block = scale_block(args, rows, columns);
  const auto as_matrix = [](const at::Tensor& t) { return t.defined() && t.dim() == 1 ? t.view({1, 1}) : t; };
  const QuantizedWeight whole{weight.codes, as_matrix(weight.scale), as_matrix(weight.zero_point)};
  const std::vector<RowRange> ranges = row_ranges(weight.codes, block.rows);
  const auto fill = [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      const RowRange& range = ranges[static_cast<std::size_t>(i)];
      result.narrow(0, range.first, range.count).copy_(scaled_rows(whole, range, block));
    }
  };
  const auto steps = static_cast<std::int64_t>(ranges.size());
  if (!weight.codes.is_cpu()) {
    fill(0, steps);
    return result;
  }
  // Each thread runs whole ranges with serial operators; the caller's modes (inference, no gradients) go along.
  const at::ThreadLocalState modes;
  at::parallel_for(0, steps, 1, [&](std::int64_t begin, std::int64_t end) {
    const at::ThreadLocalStateGuard guard(modes);
    fill(begin, end);
  });
  return result;
}

}  // namespace layerpress::quant
