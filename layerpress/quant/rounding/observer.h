#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <string>
#include <vector>

#include "layerpress/kernels/scales/scale_search.h"
#include "layerpress/quant/compressed_weight.h"
#include "layerpress/quant/scheme.h"

namespace layerpress::quant {

/// The rule by which the scales of weights are chosen.
/// - kMinMax: the range of the weights.
/// - kMse: the shrunken range with the smallest sum |error|^norm (LLM Compressor's memoryless_mse: maxshrink 0.2, grid
///   100, norm 2.4, and no further once `patience` ranges in a row were better for no part of the weight). Its ranges
///   and scales are LLM Compressor's in the dtype of the weight; errors are always summed in fp32.
/// - kSquaredError: the shrunken range (1.0 down to 0.6 in 21 steps, of 2 bits down to 0.4) with the smallest squared error. For NVFP4,
///   1.5 down to 0.6 in 31 steps.
/// - kHessian: the same, with errors weighted by the diagonal of the inputs' Gram matrix, which estimates the error of the layer's
///   outputs.
/// - kImportance: LLM Compressor's imatrix_mse (maxshrink 0.95, grid 20, norm 3) and nvfp4_expanded_imatrix: as kMse, with one range
///   more and errors weighted by the mean squares of the inputs. Weights with one scale for a tensor or a block, and inputs that say
///   nothing, are not weighted.
/// - kGptq: every second of these ranges is tried when a group's turn comes, and the one with the smallest loss of GPTQ
///   is taken (kernels::GroupSearch); where that is impossible, as kHessian.
/// For scales that are powers of two (MX), all rules except kMinMax try the two neighbouring powers instead.
enum class Observer { kMinMax, kMse, kSquaredError, kHessian, kGptq, kImportance };

struct ObserverSettings {
  Observer observer = Observer::kMinMax;
  double maxshrink = 0.20;  ///< mse and imatrix_mse: the smallest range is 1 - maxshrink of the largest
  double grid = 100;        ///< steps of 1 / grid
  double norm = 2.4;
  int patience = 5;   ///< 0, of imatrix_mse: all ranges
  double expand = 1;  ///< the largest range is the weights' times this
  /// Whether scales may be negative (kernels::RangeRule::signed_scale); nothing: what has_signed_scales() says.
  std::optional<bool> signed_scales{};
  /// NVFP4's ranges are chosen before their scales are rounded to e4m3, and the global scale follows from them.
  bool global_from_chosen = false;
};

/// Parses an observer name ("minmax", "memoryless_minmax", "static_minmax", "mse", "memoryless_mse", "squared_error", "hessian", "gptq",
/// "imatrix_mse", "nvfp4_expanded_mse", "fouroversix", "nvfp4_expanded_imatrix";
/// case does not matter) and its kwargs; throws RecipeError naming `where` for unknown names (with the nearest known
/// one) and keys. `full_range` of Layerpress's own observers says whether scales may be negative.
ObserverSettings parse_observer(const std::string& name, const Json& kwargs, const std::string& where);

/// The observer that the arguments name. What with_portable_observer makes of hessian is hessian again: with a global scale (NVFP4),
/// imatrix_mse would choose another one.
ObserverSettings observer_of_weights(const QuantizationArgs& weights, const std::string& where);

/// Whether an observer chooses negative scales for a scheme's weights by default: Layerpress's own observers, for symmetric integers of at most 4
/// bits whose inputs are not quantized. Kernels for these multiply by the scale, whatever its sign; AutoRound's checkpoints have such
/// scales, too.
bool has_signed_scales(const QuantizationScheme& scheme, Observer observer);

/// Completes signed_scales, and where hessian chooses negative scales, writes so into its arguments: as imatrix_mse, LLM Compressor's
/// name, it would not. Throws RecipeError naming `where` if weights other than symmetric integers ask for them.
void settle_signed_scales(QuantizationScheme& scheme, ObserverSettings& settings, const std::string& where);

/// Whether the observer weighs errors with the inputs of the weights.
bool weighs_inputs(Observer observer);

/// The arguments with the observer as LLM Compressor has it: for hessian, imatrix_mse with the arguments of the same ranges. `full_range`,
/// which LLM Compressor does not look at, stays.
QuantizationArgs with_portable_observer(QuantizationArgs weights);

/// "minmax", "mse", "squared_error", "hessian", "gptq" or "imatrix_mse".
std::string observer_name(Observer observer);

/// The observer of weights whose inputs are not known, where the recipe names none: mse for integers and fp8, squared_error for NVFP4
/// and MX. Measured (docs/quality.md): mse's power of 2.4 helps integers and harms e2m1, whose steps grow with the values.
Observer observer_without_inputs(const QuantizationArgs& args);

/// These settings, without hessian and gptq; imatrix_mse then weights no errors.
ObserverSettings without_inputs(const QuantizationArgs& args, const ObserverSettings& settings);

kernels::RangeRule range_rule(const QuantizationArgs& weights);
kernels::ScaleGrid scale_grid(const QuantizationArgs& weights, std::int64_t rows, std::int64_t columns);

/// Chooses the scales of a weight [rows, columns] and rounds them as `stored` says (scale_format). `importance` (fp32
/// [columns]) is the Gram diagonal, or what is proportional to it, which kHessian and kGptq require; `others` are the other rows of the same weight. A
/// scale may overflow its dtype.
kernels::ChosenScales choose_scales(const at::Tensor& weight, const QuantizationArgs& args,
                                    const ObserverSettings& settings, const kernels::ScaleFormat& stored,
                                    const at::Tensor& importance, const std::vector<kernels::OtherRows>& others = {});

/// The greatest magnitude from which a weight's global scale follows: that of the weight, or of the ranges that are chosen.
/// `importance` as in choose_scales, or undefined.
double magnitude_for_global_scale(const at::Tensor& weight, const QuantizationArgs& args,
                                  const ObserverSettings& settings, const at::Tensor& importance = {});

/// The search of GPTQ during the solve; nothing for other observers, or if the weights' blocks do not allow it.
std::optional<kernels::GroupSearch> group_search(const QuantizationArgs& args, const ObserverSettings& settings,
                                                 const kernels::ScaleFormat& stored, std::int64_t columns);

/// Bytes that choose_scales allocates at most on `device` for a weight [rows, columns], including its result.
std::uint64_t observe_workspace(const QuantizationArgs& args, const ObserverSettings& settings, std::int64_t rows,
                                std::int64_t columns, const at::Device& device);

/// Operations of choose_scales for a weight of so many elements, at most: 2 for the range, and per candidate 12 to
/// quantize, dequantize and sum a squared error, or 48 for a power other than 2 (a logarithm and an exponential).
double observe_flops(const QuantizationArgs& args, const ObserverSettings& settings, double elements);

/// Operations for rounding so many elements to nearest: 8 each.
double round_flops(double elements);

/// Codes (int8 bytes) and scales as kernels produce them, converted to the stored shapes and dtypes.
QuantizedWeight to_quantized_weight(const QuantizationArgs& args, const at::Tensor& codes,
                                    const kernels::ChosenScales& scales, const kernels::ScaleFormat& stored);

}  // namespace layerpress::quant
