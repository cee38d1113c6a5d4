#include <ATen/ATen.h>

#include <array>

#include "layerpress/base/text.h"
#include "layerpress/quant/container_format.h"
#include "layerpress/quant/pack.h"
#include "layerpress/quant/weight_parameters.h"
#include "layerpress/source/module_tensors.h"

namespace layerpress::source {
namespace {

constexpr std::initializer_list<const char*> kModelOptParts = {"weight", "weight_scale", "weight_scale_2",
                                                               "input_scale"};

/// NVFP4 ("weight" U8 with two columns in a byte, "weight_scale" e4m3 per 16 columns, "weight_scale_2" F32, all multiplied) and
/// FP8 ("weight" e4m3, "weight_scale" F32 per tensor or row), as NVIDIA's Model Optimizer writes them; "input_scale" where inputs
/// are quantized with a stored scale. Which of them a module has is seen from its tensors.
class ModelOpt : public ModuleFormat {
 public:
  ModelOpt(const Json& config, const std::string& where)
      : algorithm_(json_get_or<std::string>(config, "quant_algo", where, "")) {
    constexpr std::array kKnown = {"NVFP4", "FP8", "FP8_PER_CHANNEL_PER_TOKEN", "MIXED_PRECISION", "W4A16_NVFP4", ""};
    for (const char* known : kKnown)
      if (algorithm_ == known) return;
    throw UnsupportedError("[source.modelopt] {}: quant_algo '{}' is not supported; only NVFP4 and FP8 are", where,
                           algorithm_);
  }

  std::string description() const override { return "modelopt" + (algorithm_.empty() ? "" : " " + algorithm_); }

 private:
  bool marks(const std::string& suffix, const checkpoint::StoredTensor& tensor) const override {
    return suffix == "weight_scale" || suffix == "weight_scale_2" || suffix == "pre_quant_scale" ||
           (suffix == "weight" && (tensor.dtype == at::kFloat8_e4m3fn || tensor.dtype == at::kByte));
  }

  StoredWeight weight(const ModuleTensors& tensors) const override {
    if (tensors.has("pre_quant_scale"))
      throw CheckpointError(
          "[source.modelopt] {}: inputs that are scaled before they are quantized (pre_quant_scale) are not "
          "supported",
          tensors.name("pre_quant_scale"));
    const auto& codes = tensors.spec("weight", {at::kByte, at::kFloat8_e4m3fn});
    if (codes.shape.size() != 2 || codes.numel() == 0)
      tensors.refuse("weight", fmt::format("shape {}, expected [rows, columns]", quant::shape_text(codes.shape)));
    return codes.dtype == at::kByte ? nvfp4(tensors, codes.shape) : fp8(tensors, codes.shape);
  }

  static bool has_input_scale(const ModuleTensors& tensors) {
    if (!tensors.has("input_scale")) return false;
    if (tensors.spec("input_scale", kScaleDtypes).numel() != 1)
      tensors.refuse("input_scale", "has more than one number");
    return true;
  }

  /// Codes and scales. compressed-tensors has no scales of 0: such a group gets the smallest one and codes of 0.
  static std::vector<quant::NamedTensor> without_zero_scales(const ModuleTensors& tensors) {
    constexpr int kGroupBytes = 8, kSmallest = 1;
    at::Tensor codes = tensors.get("weight"), scales = tensors.fp8_codes("weight_scale");
    const at::Tensor zero = scales.view(at::kByte).eq(0);
    if (zero.any().item<bool>()) {
      codes = codes.view({codes.size(0), -1, kGroupBytes}).masked_fill(zero.unsqueeze(-1), 0).view(codes.sizes());
      scales = scales.view(at::kByte).masked_fill(zero, kSmallest).view(at::kFloat8_e4m3fn);
    }
    return {{"weight_packed", codes}, {"weight_scale", scales}};
  }

  static StoredWeight nvfp4(const ModuleTensors& tensors, const std::vector<std::int64_t>& packed) {
    constexpr std::int64_t kGroup = 16;
    const std::int64_t rows = packed[0], columns = 2 * packed[1];
    if (columns % kGroup != 0)
      tensors.refuse("weight", fmt::format("{} columns do not divide into groups of {}", columns, kGroup));
    (void)tensors.spec("weight_scale", {at::kFloat8_e4m3fn});
    tensors.require_shape("weight_scale", {rows, columns / kGroup});
    if (tensors.spec("weight_scale_2", {at::kFloat}).numel() != 1)
      tensors.refuse("weight_scale_2", "has more than one number");
    const bool inputs = has_input_scale(tensors);
    StoredWeight weight{
        .name = tensors.name("weight"), .shape = {rows, columns}, .parts = tensors.names_of(kModelOptParts)};
    weight.scheme = quant::preset_scheme(inputs ? "NVFP4" : "NVFP4A16");
    weight.scheme.targets = {"Linear"};
    weight.scheme.format = "nvfp4-pack-quantized";
    // As engines and compressed-tensors do: the reciprocal is a divisor.
    const auto divisor = [tensors](const char* suffix) {
      return tensors.scales(suffix).reshape({1}).to(at::kFloat).reciprocal();
    };
    dequantize_from(weight, [tensors, divisor] {
      quant::QuantizedWeight read;
      read.codes = quant::unpack_nibbles(tensors.get("weight"));
      read.scale = tensors.get("weight_scale");
      // Small scales of groups become 0 in this tool: the group is then all zeros.
      if (const std::string fault = quant::fault_of_scales(read.scale, quant::ScaleSigns::kNotNegative); !fault.empty())
        tensors.refuse("weight_scale", fault);
      read.global_scale = divisor("weight_scale_2");
      return read;
    });
    weight.compressed_layout = {{"weight_packed", at::kByte, packed},
                                {"weight_scale", at::kFloat8_e4m3fn, {rows, columns / kGroup}},
                                {"weight_global_scale", at::kFloat, {1}}};
    if (inputs) weight.compressed_layout.push_back({"input_global_scale", at::kFloat, {1}});
    weight.input_parameter = [divisor, inputs](const std::string& suffix) {
      return inputs && suffix == "input_global_scale" ? std::optional(divisor("input_scale")) : std::nullopt;
    };
    weight.compressed = [tensors, divisor, inputs] {
      std::vector<quant::NamedTensor> parts = without_zero_scales(tensors);
      parts.push_back({"weight_global_scale", divisor("weight_scale_2")});
      if (inputs) parts.push_back({"input_global_scale", divisor("input_scale")});
      return parts;
    };
    return weight;
  }

  static StoredWeight fp8(const ModuleTensors& tensors, const std::vector<std::int64_t>& shape) {
    const auto& scale = tensors.spec("weight_scale", {at::kFloat, at::kBFloat16, at::kHalf});
    const bool inputs = has_input_scale(tensors);
    StoredWeight weight{.name = tensors.name("weight"), .shape = shape, .parts = tensors.names_of(kModelOptParts)};
    weight.scheme = quant::preset_scheme(inputs ? "FP8" : "FP8_DYNAMIC");
    weight.scheme.targets = {"Linear"};
    weight.scheme.format = "float-quantized";
    weight.scheme.weights->strategy = scale.numel() == 1 ? quant::Strategy::kTensor : quant::Strategy::kChannel;
    if (scale.numel() != 1 && scale.shape != std::vector<std::int64_t>{shape[0]})
      tensors.require_shape("weight_scale", {shape[0], 1});
    read_fp8(weight, tensors, "weight_scale", inputs ? "input_scale" : "", scale.dtype);
    return weight;
  }

  std::string algorithm_;
};

}  // namespace

std::unique_ptr<SourceFormat> modelopt(const Json& config, const std::string& where) {
  return std::make_unique<ModelOpt>(config, where);
}

}  // namespace layerpress::source
