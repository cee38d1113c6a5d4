// What follows from a scheme: its container format, whether it can be computed here, the block that shares a scale.
#include "layerpress/quant/scheme.h"

namespace layerpress::quant {
namespace {

[[noreturn]] void not_implemented(const std::string& where, const std::string& what, const std::string& instead) {
  throw RecipeError("[quant.scheme] {}: {} not implemented yet; {}", where, what, instead);
}

bool is_float(const QuantizationArgs& args, int bits) {
  return args.type == NumberType::kFloat && args.num_bits == bits;
}

/// What vLLM's CompressedTensorsW4A8Fp8 runs.
bool is_packed_with_fp8_activations(const QuantizationArgs& weights, const QuantizationArgs& activations) {
  return weights.num_bits == 4 && weights.symmetric && weights.strategy == Strategy::kGroup &&
         weights.group_size == 128 && is_float(activations, 8) && activations.strategy == Strategy::kToken &&
         activations.symmetric;
}

void require_supported_numbers(const QuantizationArgs& args, const std::string& where) {
  if (is_float(args, 4)) not_implemented(where, "4-bit floating point (NVFP4, MXFP4) is", "use W4A16 or FP8_DYNAMIC");
  if (args.scale_dtype == "torch.uint8")
    not_implemented(where, "MX power-of-two scales (scale_dtype torch.uint8) are", "use FP8_DYNAMIC or FP8_BLOCK");
  if (args.scale_dtype) not_implemented(where, fmt::format("scale_dtype {} is", *args.scale_dtype), "leave it null");
  if (args.strategy == Strategy::kTensorGroup || args.strategy == Strategy::kAttentionHead)
    not_implemented(where, fmt::format("strategy {} is", name_of(args.strategy)), "use tensor, channel or group");
}

void require_supported_weights(const QuantizationArgs& args, const std::string& where) {
  require_supported_numbers(args, where);
  if (args.dynamic != Dynamic::kFalse || args.strategy == Strategy::kToken)
    not_implemented(where, fmt::format("dynamic (strategy {}) weights are", name_of(args.strategy)), "remove dynamic");
  if (args.type == NumberType::kFloat) {
    if (!args.symmetric) not_implemented(where, "asymmetric floating point is", "write symmetric: true");
    if (args.strategy == Strategy::kGroup)
      not_implemented(where, "8-bit floating point per group is", "use channel or block");
    return;
  }
  if (args.num_bits < 2 || args.num_bits > 8)
    not_implemented(where, fmt::format("{}-bit integer weights are", args.num_bits), "use 2 to 8 bits");
  if (args.strategy == Strategy::kBlock)
    not_implemented(where, "integer weights per block are", "use tensor, channel or group");
  if (!args.symmetric && args.zp_dtype && args.zp_dtype != "torch.int8")
    not_implemented(where, fmt::format("zp_dtype {} is", *args.zp_dtype), "leave it out");
}

void require_supported_activations(const QuantizationArgs& args, const std::string& where) {
  require_supported_numbers(args, where);
  if (args.dynamic == Dynamic::kLocal) not_implemented(where, "dynamic \"local\" is", "write dynamic: true");
  if (args.dynamic == Dynamic::kFalse)
    not_implemented(where, "static activation scales (dynamic: false) are", "write dynamic: true, as FP8_DYNAMIC does");
}

void require_supported_format(const QuantizationScheme& scheme, const std::string& where) {
  const std::string format = resolved_format(scheme);
  const bool integer = scheme.weights->type == NumberType::kInt;
  const bool fits = integer ? format == "pack-quantized" || format == "int-quantized" || format == "naive-quantized"
                            : format == "float-quantized" || format == "naive-quantized";
  if (!fits)
    throw RecipeError("[quant.scheme] {}: format {} does not hold {} {}-bit weights; leave format out to get {}", where,
                      format, name_of(scheme.weights->type), scheme.weights->num_bits, infer_format(scheme));
}

}  // namespace

std::string infer_format(const QuantizationScheme& scheme) {
  if (!scheme.weights) return "dense";
  const QuantizationArgs& weights = *scheme.weights;
  const auto& activations = scheme.input_activations;
  if (is_float(weights, 4) && weights.group_size == 32) return "mxfp4-pack-quantized";
  if (is_float(weights, 8) && weights.group_size == 32 && weights.scale_dtype == "torch.uint8")
    return "mxfp8-quantized";
  if (is_float(weights, 4) && weights.group_size == 16) return "nvfp4-pack-quantized";
  if (weights.type == NumberType::kInt) {
    if (activations && !is_packed_with_fp8_activations(weights, *activations)) return "int-quantized";
    if (weights.num_bits <= 8) return "pack-quantized";
  }
  return activations ? "float-quantized" : "naive-quantized";
}

std::string resolved_format(const QuantizationScheme& scheme) {
  return scheme.format.empty() ? infer_format(scheme) : scheme.format;
}

void require_supported(const QuantizationScheme& scheme, const std::string& where) {
  if (scheme.output_activations) not_implemented(where, "output_activations are", "remove them");
  if (!scheme.weights)
    throw RecipeError(
        "[quant.scheme] {}: the scheme leaves weights unquantized; list such modules under ignore instead", where);
  require_supported_weights(*scheme.weights, where + ".weights");
  if (scheme.input_activations) require_supported_activations(*scheme.input_activations, where + ".input_activations");
  require_supported_format(scheme, where);
}

ScaleBlock scale_block(const QuantizationArgs& weights, std::int64_t rows, std::int64_t columns) {
  switch (weights.strategy) {
    case Strategy::kTensor:
      return {rows, columns};
    case Strategy::kChannel:
      return {1, columns};
    case Strategy::kGroup:
      return {1, weights.group_size.value()};
    case Strategy::kBlock:
      return {weights.block_structure.value()[0], weights.block_structure.value()[1]};
    default:
      throw InternalError("[quant.scale_block] strategy {} has no blocks in a weight", name_of(weights.strategy));
  }
}

}  // namespace layerpress::quant
