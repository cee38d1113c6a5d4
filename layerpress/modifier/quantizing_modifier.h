#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "layerpress/compression/modifier.h"
#include "layerpress/quant/observer.h"

namespace layerpress::modifier {

/// What every quantizing modifier shares, with LLM Compressor's arguments and defaults: which modules, which schemes,
/// which observers. Parsing throws RecipeError naming `where` and the argument; what is not implemented is refused.
class QuantizingModifier : public compression::Modifier {
 public:
  const quant::QuantizationScheme* scheme_for(const quant::ModuleName& module) const override;
  std::int64_t row_step(const compression::LinearShape& linear) const override;

 protected:
  /// Arguments: targets (["Linear"]), ignore ([]), scheme (preset name, or {preset: targets}), config_groups,
  /// weight_observer / observer {weights}, kv_cache_scheme (only null). `own_keys` are the derived class's arguments.
  QuantizingModifier(const Json& arguments, const std::string& where, const std::vector<std::string>& own_keys,
                     quant::Observer default_observer);

  /// Fills in actorder where a group scheme names none ("static" or null).
  void set_default_actorder(const std::optional<std::string>& actorder);

  const quant::ObserverSettings& observer_for(const quant::QuantizationScheme* scheme) const;
  bool any_observer(quant::Observer observer) const;

  /// What is observed of rows [first, ...) of a weight in their place.
  using ObservedRows = std::function<at::Tensor(const at::Tensor& rows, std::int64_t first)>;

  /// Observes one weight; fp32 scales that are representable in the stored dtype, or overflow it. Measured as "observe".
  kernels::ChosenScales observe(const compression::LinearWeight& linear, const at::Tensor& importance, PhaseTimes& times,
                                const ObservedRows& observed = {}) const;

  /// Throws RecipeError naming the module when a scale has overflowed the dtype that it is stored in.
  static void require_finite(const std::vector<compression::LinearWeight>& linears,
                             const std::vector<kernels::ChosenScales>& scales);

  /// Adds what observing a linear, rounding it and keeping its result costs to what the linears before it cost.
  void add_rounding_cost(const compression::LinearShape& linear, compression::CompressionCost& cost) const;

  /// Rounds one weight to nearest; codes as int8. Measured as "quantize".
  static at::Tensor round_to_nearest(const compression::LinearWeight& linear, const kernels::ChosenScales& scales,
                                     PhaseTimes& times);

  /// What compressing a linear has given, with its report. `tokens`: that its statistics saw.
  static compression::CompressedModule result_of(const compression::LinearWeight& linear, const at::Tensor& codes,
                                                 const kernels::ChosenScales& scales, std::int64_t tokens);

 private:
  struct Group {
    quant::QuantizationScheme scheme;
    quant::TargetList targets;
    quant::ObserverSettings observer;
  };
  void add_group(quant::QuantizationScheme scheme, const std::string& where, quant::Observer default_observer);
  /// Rows of the whole weight beside those of `linear`.
  static std::vector<kernels::OtherRows> others_of(const compression::LinearWeight& linear, const ObservedRows& observed);
  std::vector<Group> groups_;
  std::optional<quant::TargetList> ignore_;
  std::optional<std::string> named_observer_;
};

/// "4-bit int, group 64" and the like.
std::string describe(const quant::QuantizationScheme& scheme);

}  // namespace layerpress::modifier
