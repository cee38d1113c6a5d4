// What follows from a scheme: its container format, whether it can be computed here, the block that shares a scale.
#include <algorithm>

#include "layerpress/quant/container_format.h"
#include "layerpress/quant/scheme.h"

namespace layerpress::quant {
namespace {

[[noreturn]] void not_implemented(const std::string& where, const std::string& what, const std::string& instead) {
  throw RecipeError("[quant.scheme] {}: {} not implemented yet; {}", where, what, instead);
}

/// NVFP4 and MX formats have scales of a dtype other than the checkpoint's.
bool has_own_scale_dtype(const QuantizationArgs& args) { return args.scale_dtype.has_value() || args.is_float(4); }

void require_supported_numbers(const QuantizationArgs& args, const std::string& where) {
  if (args.strategy == Strategy::kAttentionHead)
    not_implemented(where, fmt::format("strategy {} is", name_of(args.strategy)), "use tensor, channel or group");
  const bool nvfp4 = args.is_float(4) && args.strategy == Strategy::kTensorGroup && args.group_size == 16;
  const bool mx = args.type == NumberType::kFloat && args.strategy == Strategy::kGroup && args.group_size == 32;
  if (nvfp4 && (!args.scale_dtype || args.scale_dtype == "torch.float8_e4m3fn")) return;
  if (mx && args.scale_dtype == "torch.uint8") return;
  if (mx && args.is_float(4) && !args.scale_dtype) return;
  if (args.is_float(4))
    not_implemented(where, "4-bit floating point with groups or scales other than NVFP4's and MXFP4's is",
                    "use strategy tensor_group with group_size 16, or group with 32 and scale_dtype torch.uint8");
  if (args.scale_dtype == "torch.uint8")
    not_implemented(where, "scale_dtype torch.uint8 (powers of two) is for groups of 32 floats; anything else is",
                    "use MXFP4, MXFP8 or leave it null");
  if (args.scale_dtype) not_implemented(where, fmt::format("scale_dtype {} is", *args.scale_dtype), "leave it null");
  if (args.strategy == Strategy::kTensorGroup)
    not_implemented(where, "strategy tensor_group is for NVFP4 (4-bit floats in groups of 16); anything else is",
                    "use tensor, channel or group");
}

void require_supported_weights(const QuantizationArgs& args, const std::string& where) {
  require_supported_numbers(args, where);
  if (args.dynamic != Dynamic::kFalse || args.strategy == Strategy::kToken)
    not_implemented(where, fmt::format("dynamic (strategy {}) weights are", name_of(args.strategy)), "remove dynamic");
  if (args.type == NumberType::kFloat) {
    if (!args.symmetric) not_implemented(where, "asymmetric floating point is", "write symmetric: true");
    if (args.strategy == Strategy::kGroup && !has_own_scale_dtype(args))
      not_implemented(where, "8-bit floating point per group is", "use channel, block, or MXFP8");
    return;
  }
  if (args.num_bits < 2 || args.num_bits > 8)
    not_implemented(where, fmt::format("{}-bit integer weights are", args.num_bits), "use 2 to 8 bits");
  if (args.strategy == Strategy::kBlock)
    not_implemented(where, "integer weights per block are", "use tensor, channel or group");
  if (!args.symmetric && args.zp_dtype && args.zp_dtype != "torch.int8")
    not_implemented(where, fmt::format("zp_dtype {} is", *args.zp_dtype), "leave it out");
}

void require_supported_static_numbers(const QuantizationArgs& args, const std::string& where) {
  if (args.scale_dtype) not_implemented(where, fmt::format("scale_dtype {} is", *args.scale_dtype), "leave it null");
  if (args.type == NumberType::kFloat) {
    if (!args.is_float(8)) not_implemented(where, "static 4-bit floating point is", "use 8 bits");
    if (!args.symmetric) not_implemented(where, "asymmetric floating point is", "write symmetric: true");
    return;
  }
  if (args.num_bits < 2 || args.num_bits > 8)
    not_implemented(where, fmt::format("{}-bit static integer activations are", args.num_bits), "use 2 to 8 bits");
  if (!args.symmetric && args.zp_dtype && args.zp_dtype != "torch.int8")
    not_implemented(where, fmt::format("zp_dtype {} is", *args.zp_dtype), "leave it out");
}

void require_supported_activations(const QuantizationArgs& args, const std::string& where) {
  require_supported_numbers(args, where);
  if (args.strategy == Strategy::kTensorGroup && args.dynamic != Dynamic::kLocal)
    not_implemented(where, "NVFP4 activations without dynamic: local are", "write dynamic: local");
  if (args.dynamic != Dynamic::kFalse) return;
  if (args.strategy != Strategy::kTensor)
    not_implemented(where, fmt::format("static activation scales of strategy {} are", name_of(args.strategy)),
                    "use strategy tensor, or dynamic: true");
  require_supported_static_numbers(args, where);
}

void require_supported_format(const QuantizationScheme& scheme, const std::string& where) {
  const std::string name = resolved_format(scheme);
  const ContainerFormat* format = find_container_format(name);
  if (format == nullptr || !format->holds(*scheme.weights))
    throw RecipeError("[quant.scheme] {}: format {} does not hold {} {}-bit weights; leave format out to get {}", where,
                      name, name_of(scheme.weights->type), scheme.weights->num_bits, infer_format(scheme));
}

}  // namespace

std::string infer_format(const QuantizationScheme& scheme) {
  if (!scheme.weights) return kDenseFormat;
  const auto& formats = container_formats();
  const auto found = std::find_if(formats.begin(), formats.end(),
                                  [&](const ContainerFormat* format) { return format->is_default_for(scheme); });
  return (*found)->name();  // the last one takes every scheme
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

void require_supported_attention(const QuantizationArgs& args, const std::string& where) {
  if (args.strategy != Strategy::kTensor && args.strategy != Strategy::kAttentionHead)
    throw RecipeError("[quant.scheme] {}: strategy is {}; attention supports tensor and attn_head", where,
                      name_of(args.strategy));
  if (args.dynamic != Dynamic::kFalse)
    not_implemented(where, "dynamic scales of keys and values are", "write dynamic: false");
  require_supported_static_numbers(args, where);
}

ScaleBlock scale_block(const QuantizationArgs& weights, std::int64_t rows, std::int64_t columns) {
  switch (weights.strategy) {
    case Strategy::kTensor:
      return {rows, columns};
    case Strategy::kChannel:
      return {1, columns};
    case Strategy::kGroup:
    case Strategy::kTensorGroup:
      return {1, weights.group_size.value()};
    case Strategy::kBlock:
      return {weights.block_structure.value()[0], weights.block_structure.value()[1]};
    default:
      throw InternalError("[quant.scale_block] strategy {} has no blocks in a weight", name_of(weights.strategy));
  }
}

}  // namespace layerpress::quant
