#include <ATen/ATen.h>

#include <array>
#include <optional>

#include "layerpress/quant/container_format.h"
#include "layerpress/quant/pack.h"
#include "layerpress/source/module_tensors.h"

namespace layerpress::source {
namespace {

using Block = std::array<std::int64_t, 2>;
constexpr Block kMx = {1, 32};  // what MX formats give a scale

/// Scales have one of these names. They are numbers, or powers of two in one byte.
constexpr std::initializer_list<const char*> kScaleNames = {"weight_scale", "weight_scale_inv", "scale"};
constexpr std::initializer_list<at::ScalarType> kDtypes = {at::kFloat, at::kBFloat16, at::kHalf, at::kFloat8_e8m0fnu,
                                                           at::kByte};

/// "weight" F8_E4M3 [rows, columns] times "weight_scale_inv" (blocks of DeepSeek V3's kind, the last of which may be cut) or
/// "weight_scale" (one per tensor or row); where blocks are 1 x 32 and scales powers of two, that is MXFP8. "weight" I8 [rows,
/// columns / 2] is MXFP4, as experts of DeepSeek V4 are stored. As vLLM and transformers read quant_method fp8.
class Fp8 : public ModuleFormat {
 public:
  Fp8(const Json& config, const std::string& where) {
    const auto activations = json_get_or<std::string>(config, "activation_scheme", where, "dynamic");
    if (activations != "dynamic" && activations != "static")
      throw CheckpointError("[source.fp8] {}: unknown activation_scheme '{}'; only dynamic and static are supported",
                            where, activations);
    static_ = activations == "static";
    if (const auto format = json_get_or<std::string>(config, "fmt", where, "e4m3"); format != "e4m3")
      throw UnsupportedError("[source.fp8] {}: fmt '{}' is not supported; only e4m3 is", where, format);
    if (!json_has(config, "weight_block_size")) return;
    const auto sizes = json_get<std::vector<std::int64_t>>(config, "weight_block_size", where);
    if (sizes.size() != 2 || sizes[0] < 1 || sizes[1] < 1)
      throw CheckpointError("[source.fp8] {}: weight_block_size must be two positive numbers, is {}", where,
                            shortened(config["weight_block_size"]));
    block_ = {sizes[0], sizes[1]};
  }

  std::string description() const override {
    return block_ ? fmt::format("fp8, a scale per block of {} x {}", (*block_)[0], (*block_)[1])
                  : "fp8, a scale per tensor or channel";
  }

 private:
  static std::string scale_of(const ModuleTensors& tensors) {
    const std::string found = tensors.first_of(kScaleNames);
    return found.empty() ? "weight_scale_inv" : found;
  }

  bool marks(const std::string& suffix, const checkpoint::StoredTensor& tensor) const override {
    return suffix == "weight_scale_inv" || suffix == "weight_scale" ||
           (suffix == "weight" && (tensor.dtype == at::kFloat8_e4m3fn || tensor.dtype == at::kChar));
  }

  StoredWeight weight(const ModuleTensors& tensors) const override {
    const auto& codes = tensors.spec("weight", {at::kFloat8_e4m3fn, at::kChar});
    if (codes.shape.size() != 2 || codes.numel() == 0)
      tensors.refuse("weight", fmt::format("shape {}, expected [rows, columns]", quant::shape_text(codes.shape)));
    const std::string scale = scale_of(tensors);
    const at::ScalarType stored_dtype = tensors.spec(scale, kDtypes).dtype;
    const bool powers = stored_dtype == at::kFloat8_e8m0fnu || stored_dtype == at::kByte;
    if (codes.dtype == at::kChar) return in_mx(tensors, scale, "MXFP4A16", {codes.shape[0], 2 * codes.shape[1]});
    if (powers && block_ == kMx) return in_mx(tensors, scale, "MXFP8", codes.shape);
    const at::ScalarType dtype = powers ? at::kFloat : stored_dtype;
    const std::string input = static_ ? tensors.first_of({"input_scale", "activation_scale"}) : "";
    StoredWeight weight{.name = tensors.name("weight"),
                        .shape = codes.shape,
                        .parts = parts_of(tensors),
                        .scheme = scheme_of(tensors, scale, codes.shape, !input.empty())};
    read_fp8(weight, tensors, scale, input, dtype);
    return weight;
  }

  static std::vector<std::string> parts_of(const ModuleTensors& tensors) {
    return tensors.names_of({"weight", "weight_scale", "weight_scale_inv", "scale", "input_scale", "activation_scale"});
  }

  /// Groups of 32 columns with a power of two each.
  static StoredWeight in_mx(const ModuleTensors& tensors, const std::string& scale, const char* preset,
                            const std::vector<std::int64_t>& shape) {
    (void)tensors.spec(scale, {at::kFloat8_e8m0fnu, at::kByte, at::kFloat});
    if (shape[1] % kMx[1] != 0)
      tensors.refuse("weight", fmt::format("{} columns do not divide into groups of {}", shape[1], kMx[1]));
    tensors.require_shape(scale, {shape[0], shape[1] / kMx[1]});
    StoredWeight weight{.name = tensors.name("weight"), .shape = shape, .parts = parts_of(tensors)};
    weight.scheme = quant::preset_scheme(preset);
    weight.scheme.targets = {"Linear"};
    weight.scheme.format = quant::infer_format(weight.scheme);
    const auto read = [=, packed = weight.scheme.weights->num_bits == 4] {
      quant::QuantizedWeight read;
      read.codes = packed ? quant::unpack_nibbles(tensors.get("weight").view(at::kByte)) : tensors.fp8_codes("weight");
      read.scale = tensors.exponents(scale);
      return read;
    };
    dequantize_from(weight, read);
    keep_from(weight, at::kFloat, read);
    return weight;
  }

  /// By the scale's shape: one per tensor, per row, or per block.
  quant::QuantizationScheme scheme_of(const ModuleTensors& tensors, const std::string& scale,
                                      const std::vector<std::int64_t>& shape, bool has_input_scale) const {
    const std::vector<std::int64_t>& sizes = tensors.spec(scale, kDtypes).shape;
    const bool is_one = sizes.empty() || sizes == std::vector<std::int64_t>{1};
    const bool per_row =
        !block_ && (sizes == std::vector<std::int64_t>{shape[0]} || sizes == std::vector<std::int64_t>{shape[0], 1});
    quant::QuantizationScheme scheme = quant::preset_scheme(has_input_scale ? "FP8" : "FP8_DYNAMIC");
    scheme.targets = {"Linear"};
    if (is_one && !block_) {
      scheme.weights->strategy = quant::Strategy::kTensor;
    } else if (per_row) {
      scheme.weights->strategy = quant::Strategy::kChannel;
    } else {
      const Block block = block_.value_or(Block{128, 128});
      tensors.require_shape(scale, {divided_up(shape[0], block[0]), divided_up(shape[1], block[1])});
      scheme = quant::preset_scheme("FP8_BLOCK");
      scheme.targets = {"Linear"};
      scheme.weights->block_structure = block;
      scheme.input_activations->group_size = block[1];
    }
    if (has_input_scale &&
        tensors.spec(tensors.first_of({"input_scale", "activation_scale"}), kScaleDtypes).numel() != 1)
      tensors.refuse(tensors.first_of({"input_scale", "activation_scale"}), "has more than one number");
    scheme.format = quant::infer_format(scheme);
    return scheme;
  }

  bool static_ = false;
  std::optional<Block> block_;
};

}  // namespace

std::unique_ptr<SourceFormat> fp8(const Json& config, const std::string& where) {
  return std::make_unique<Fp8>(config, where);
}

}  // namespace layerpress::source
