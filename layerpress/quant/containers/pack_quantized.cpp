#include <ATen/ATen.h>

#include <array>
#include <optional>

#include "layerpress/quant/pack.h"
#include "layerpress/quant/weight_parameters.h"

namespace layerpress::quant {
namespace {

using Shape = std::vector<std::int64_t>;

/// Integers of up to 8 bits as dense bits: "weight_packed" I32 [rows, words], "weight_shape" I64 [2]. Zero points of
/// groups and channels are packed along the rows; a single one is stored as it is.
class PackQuantized final : public ContainerFormat {
 public:
  using ContainerFormat::ContainerFormat;

  std::vector<NamedTensorSpec> layout(const QuantizationArgs& weights, std::int64_t rows, std::int64_t columns,
                                      at::ScalarType weight_dtype) const override {
    std::vector<NamedTensorSpec> specs = {{"weight_packed", at::kInt, {rows, packed_words(columns, weights.num_bits)}}};
    add_scale_specs(weights, rows, columns, weight_dtype, specs);
    specs.push_back({"weight_shape", at::kLong, {2}});
    if (packs_zero_points(weights))
      specs.push_back({"weight_zero_point", at::kInt, packed_shape(weights, rows, columns)});
    else
      add_zero_point_specs(weights, rows, columns, specs);
    return specs;
  }

  std::vector<NamedTensor> write(const QuantizationArgs& weights, const QuantizedWeight& weight) const override {
    std::vector<NamedTensor> tensors = {{"weight_packed", pack_int32(weight.codes, weights.num_bits)}};
    add_scales(weight, tensors);
    tensors.push_back({"weight_shape", at::tensor(weight.codes.sizes(), at::kLong)});
    if (packs_zero_points(weights))
      tensors.push_back({"weight_zero_point", pack_int32(weight.zero_point.t(), weights.num_bits).t().contiguous()});
    else
      add_zero_points(weight, tensors);
    return tensors;
  }

  QuantizedWeight read(const QuantizationArgs& weights, const ModuleReader& reader) const override {
    QuantizedWeight weight;
    weight.codes = read_codes(weights, reader);
    read_scales(weights, reader, "weight_packed", weight);
    if (!packs_zero_points(weights)) {
      read_zero_points(weights, reader, weight);
      return weight;
    }
    const std::int64_t rows = weight.codes.size(0);
    const at::Tensor packed =
        reader.get("weight_zero_point", at::kInt, packed_shape(weights, rows, weight.codes.size(1)));
    weight.zero_point = unpack_int32(packed.t(), weights.num_bits, rows).t().contiguous();
    return weight;
  }

 private:
  static bool packs_zero_points(const QuantizationArgs& weights) {
    return !weights.symmetric && weights.strategy != Strategy::kTensor;
  }

  /// Whether zero points are packed.
  static Shape packed_shape(const QuantizationArgs& weights, std::int64_t rows, std::int64_t columns) {
    Shape shape = scale_shape(weights, rows, columns);
    shape[0] = packed_words(rows, weights.num_bits);
    return shape;
  }

  static std::array<std::int64_t, 2> read_shape(const ModuleReader& reader) {
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

  static at::Tensor read_codes(const QuantizationArgs& weights, const ModuleReader& reader) {
    const auto [rows, columns] = read_shape(reader);
    const at::Tensor packed = reader.get("weight_packed", at::kInt);
    if (packed.dim() != 2 || packed.size(0) != rows)
      reader.refuse("weight_packed", fmt::format("shape {}, expected {} rows", shape_text(packed.sizes()), rows));
    try {
      return unpack_int32(packed, weights.num_bits, columns);
    } catch (const CheckpointError& error) {
      reader.refuse("weight_packed", error.what());
    }
  }
};

}  // namespace

const ContainerFormat& pack_quantized(const FormatRules& rules) {
  static const PackQuantized kFormat(rules);
  return kFormat;
}

}  // namespace layerpress::quant
