#include <ATen/ATen.h>

#include <algorithm>

#include "layerpress/base/text.h"
#include "layerpress/quant/compressed_weight.h"
#include "layerpress/quant/container_format.h"
#include "layerpress/quant/quantization_config.h"
#include "layerpress/source/column_groups.h"

namespace layerpress::source {
namespace {

constexpr const char* kZeroPoint = "weight_zero_point";
constexpr std::initializer_list<const char*> kContainerParts = {"weight",
                                                                "weight_packed",
                                                                "weight_scale",
                                                                "weight_shape",
                                                                "weight_zero_point",
                                                                "weight_global_scale",
                                                                "weight_g_idx",
                                                                "input_scale",
                                                                "input_zero_point",
                                                                "input_global_scale",
                                                                "output_scale",
                                                                "output_zero_point"};

/// Every container format of compressed-tensors that we write, in as many groups as the file has.
class CompressedTensors : public ModuleFormat {
 public:
  CompressedTensors(const Json& config, const std::string& where)
      : config_(quant::parse_quantization_config(config, where)),
        format_(json_get_or<std::string>(config, "format", where, "compressed-tensors")) {}

  std::string description() const override { return format_; }

  bool may_be_without_weights() const override {
    return std::none_of(config_.groups.begin(), config_.groups.end(),
                        [](const auto& group) { return group.second.weights.has_value(); });
  }

 private:
  /// The classes of modules are not known here; names of embeddings tell them apart where groups do.
  const quant::QuantizationScheme& scheme_of(const ModuleTensors& tensors) const {
    const std::string last = last_part(tensors.module());
    const bool embeds = last.find("embed") != std::string::npos || last == "wte";
    for (const char* class_name : {embeds ? "Embedding" : "Linear", embeds ? "Linear" : "Embedding"}) {
      const int group = quant::assign_groups(config_, {{tensors.module(), {class_name}}}).front();
      if (group >= 0 && config_.groups[static_cast<std::size_t>(group)].second.weights)
        return config_.groups[static_cast<std::size_t>(group)].second;
    }
    throw CheckpointError(
        "[source.compressed_tensors] {}: its weight is stored quantized, but no group of config.json's "
        "quantization_config names the module",
        tensors.module());
  }

  static std::vector<std::int64_t> shape_of(const ModuleTensors& tensors) {
    if (tensors.has("weight_shape")) {
      (void)tensors.spec("weight_shape", {at::kLong, at::kInt});
      tensors.require_shape("weight_shape", {2});
      const at::Tensor sizes = tensors.get("weight_shape").to(at::kLong).contiguous();
      const auto* data = sizes.const_data_ptr<std::int64_t>();
      if (data[0] < 1 || data[1] < 1 || data[0] > (1 << 30) || data[1] > (1 << 30))
        tensors.refuse("weight_shape", fmt::format("holds [{}, {}]", data[0], data[1]));
      return {data[0], data[1]};
    }
    const bool packed = tensors.has("weight_packed");
    const std::string codes = packed ? "weight_packed" : "weight";
    std::vector<std::int64_t> shape = tensors.spec(codes, {at::kByte, at::kChar, at::kFloat8_e4m3fn, at::kInt}).shape;
    if (packed && tensors.spec(codes, {at::kByte, at::kInt}).dtype == at::kInt)
      tensors.refuse("weight_shape", "the tensor is missing");
    if (shape.size() != 2 || shape[0] < 1 || shape[1] < 1)
      tensors.refuse(codes, fmt::format("shape {}, expected [rows, columns]", quant::shape_text(shape)));
    if (packed) shape[1] *= 2;
    return shape;
  }

  bool marks(const std::string& suffix, const checkpoint::StoredTensor& tensor) const override {
    return (suffix.starts_with("weight_") &&
            std::find(kContainerParts.begin(), kContainerParts.end(), suffix) != kContainerParts.end()) ||
           (suffix == "weight" && (tensor.dtype == at::kFloat8_e4m3fn || tensor.dtype == at::kChar));
  }

  StoredWeight weight(const ModuleTensors& tensors) const override {
    const quant::QuantizationScheme& scheme = scheme_of(tensors);
    StoredWeight weight{.name = tensors.name("weight"),
                        .shape = shape_of(tensors),
                        .parts = tensors.names_of(kContainerParts),
                        .scheme = scheme};
    weight.input_parameter = [tensors](const std::string& suffix) {
      return tensors.has(suffix) ? std::optional(tensors.get(suffix)) : std::nullopt;
    };
    check(tensors, weight);
    const bool drops_zero_points = has_zeros_only(tensors, scheme);
    ColumnGroups groups;
    if (tensors.has("weight_g_idx") && scheme.weights->group_size.value_or(-1) > 0)
      groups = ColumnGroups(tensors, "weight_g_idx", weight.shape[1], *scheme.weights->group_size);
    const auto read = [tensors, scheme, drops_zero_points] {
      return quant::decompress(scheme, tensors.module(), [&](const std::string& suffix) -> std::optional<at::Tensor> {
        if (!tensors.has(suffix) || (drops_zero_points && suffix == kZeroPoint)) return std::nullopt;
        const at::Tensor part = tensors.get(suffix);
        return part.scalar_type() == at::kFloat8_e8m0fnu ? part.view(at::kByte) : part;
      });
    };
    if (groups.in_order()) {
      dequantize_from(weight, read);
      keep_as_stored(tensors, drops_zero_points, weight);
      return weight;
    }
    dequantize_from(weight, [read, groups] {
      quant::QuantizedWeight sorted = read();
      sorted.codes = groups.sorted(sorted.codes);
      return sorted;
    });
    weight.dequantize = [groups, in_order = weight.dequantize](at::ScalarType dtype) {
      return groups.restored(in_order(dtype));
    };
    return weight;
  }

  /// The tensors that the scheme's container has, with the shapes that its codes imply.
  static void check(const ModuleTensors& tensors, const StoredWeight& weight) {
    quant::QuantizationScheme weights_only = weight.scheme;  // inputs may be of kinds that are not computed here
    weights_only.input_activations = std::nullopt;
    const std::int64_t group = weights_only.weights->group_size.value_or(-1);
    if (group > 0 && weight.shape[1] % group != 0)
      tensors.refuse("weight_scale", fmt::format("{} columns do not divide into groups of {}", weight.shape[1], group));
    for (const quant::NamedTensorSpec& spec :
         quant::compressed_layout(weights_only, weight.shape[0], weight.shape[1], at::kFloat)) {
      if (spec.suffix == kZeroPoint && spec.dtype == at::kInt && tensors.has(kZeroPoint) &&
          tensors.spec(kZeroPoint, {at::kInt, at::kChar}).dtype == at::kChar)
        throw UnsupportedError(
            "[source.read] {}: zero points of a byte each, as early versions of compressed-tensors wrote them, are not "
            "supported; start from the model that it was made of",
            tensors.name(kZeroPoint));
      const bool is_scale = spec.dtype == at::kFloat && spec.suffix == "weight_scale";
      const auto& stored = is_scale                        ? tensors.spec(spec.suffix, kScaleDtypes)
                           : spec.suffix == "weight_shape" ? tensors.spec(spec.suffix, {at::kLong, at::kInt})
                           : spec.dtype == at::kByte       ? tensors.spec(spec.suffix, {at::kByte, at::kFloat8_e8m0fnu})
                                                           : tensors.spec(spec.suffix, {spec.dtype});
      const bool one = spec.shape == std::vector<std::int64_t>{1} && stored.shape.empty();
      if (!one) tensors.require_shape(spec.suffix, spec.shape);
    }
  }

  /// Whether symmetric weights have zero points, as earlier versions wrote them: zeros, which say nothing.
  static bool has_zeros_only(const ModuleTensors& tensors, const quant::QuantizationScheme& scheme) {
    return scheme.weights->symmetric && tensors.has(kZeroPoint) &&
           !tensors.get(kZeroPoint).to(at::kFloat).ne(0).any().item<bool>();
  }

  static void keep_as_stored(const ModuleTensors& tensors, bool drops_zero_points, StoredWeight& weight) {
    std::vector<std::string> suffixes;
    for (const char* suffix : kContainerParts) {
      const std::string_view name = suffix;
      if (!tensors.has(suffix) || name == "weight_g_idx" || (drops_zero_points && name == kZeroPoint)) continue;
      const auto& spec = tensors.spec(suffix, {at::kByte, at::kChar, at::kInt, at::kLong, at::kFloat8_e4m3fn,
                                               at::kFloat, at::kBFloat16, at::kHalf, at::kFloat8_e8m0fnu});
      suffixes.emplace_back(suffix);
      const bool power = spec.dtype == at::kFloat8_e8m0fnu;  // readers know these scales as bytes
      weight.compressed_layout.push_back({suffix, power ? at::kByte : spec.dtype, spec.shape});
    }
    // Checked as quant::decompress() does, which nobody calls for codes that stay.
    weight.compressed = [tensors, suffixes, signs = quant::scale_signs(*weight.scheme.weights)] {
      std::vector<quant::NamedTensor> parts;
      for (const std::string& suffix : suffixes) {
        const at::Tensor part = tensors.get(suffix);
        const at::ScalarType dtype = part.scalar_type();
        if (suffix == "weight_scale" && at::isFloatingType(dtype) && dtype != at::kFloat8_e8m0fnu)
          if (const std::string fault = quant::fault_of_scales(part, signs); !fault.empty())
            tensors.refuse(suffix, fault);
        parts.push_back({suffix, dtype == at::kFloat8_e8m0fnu ? part.view(at::kByte) : part});
      }
      return parts;
    };
  }

  quant::QuantizationConfig config_;
  std::string format_;
};

}  // namespace

std::unique_ptr<SourceFormat> compressed_tensors(const Json& config, const std::string& where) {
  return std::make_unique<CompressedTensors>(config, where);
}

}  // namespace layerpress::source
