#pragma once

#include "layerpress/quant/container_format.h"

// Scales, zero points and global scales as most container formats store them, and codes of a byte each.
namespace layerpress::quant {

void add_scale_specs(const QuantizationArgs& weights, std::int64_t rows, std::int64_t columns,
                     at::ScalarType weight_dtype, std::vector<NamedTensorSpec>& specs);
void add_scales(const QuantizedWeight& weight, std::vector<NamedTensor>& tensors);
/// Reads scale and global scale for the weight's codes, which are there. `codes` is the suffix of their tensor.
void read_scales(const QuantizationArgs& weights, const ModuleReader& reader, const std::string& codes,
                 QuantizedWeight& weight);

/// Zero points of int8 and scale's shape, for asymmetric weights.
void add_zero_point_specs(const QuantizationArgs& weights, std::int64_t rows, std::int64_t columns,
                          std::vector<NamedTensorSpec>& specs);
void add_zero_points(const QuantizedWeight& weight, std::vector<NamedTensor>& tensors);
void read_zero_points(const QuantizationArgs& weights, const ModuleReader& reader, QuantizedWeight& weight);
/// For symmetric weights, which have no zero points.
void refuse_zero_points(const ModuleReader& reader);

/// The scales that a format may have.
enum class ScaleSigns {
  kPositive,
  kNotNegative,  ///< 0 where all weights of a group are
  kAny           ///< symmetric integers may have their additional code on either side
};

/// Those of compressed-tensors' weights.
ScaleSigns scale_signs(const QuantizationArgs& weights);

/// What is wrong with scales of any float dtype, or "": they must be finite and of these signs.
std::string fault_of_scales(const at::Tensor& scale, ScaleSigns signs = ScaleSigns::kPositive);

/// Whether e4m3 codes hold NaN. Multi-threaded.
bool holds_fp8_nan(const at::Tensor& codes);

/// "weight", a byte per code.
at::Tensor read_plain_codes(const QuantizationArgs& weights, const ModuleReader& reader);

/// A tensor as it is written.
at::Tensor stored(const at::Tensor& tensor);

}  // namespace layerpress::quant
