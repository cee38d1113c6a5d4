#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "layerpress/compression/modifier.h"
#include "layerpress/modifier/arguments/argument.h"
#include "layerpress/quant/rounding/observer.h"
#include "layerpress/quant/rounding/static_inputs.h"
#include "layerpress/quant/targets/group_targets.h"

namespace layerpress::modifier {

class QuantizingModifier;

/// Rounds the embeddings among a quantizing modifier's targets to nearest, with the modifier's schemes. Rows are looked up and not
/// multiplied, so errors cannot be weighted with inputs: mse, or squared_error of NVFP4 and MX, replaces observers that do so.
class EmbeddingRounding : public compression::Quantizer {
 public:
  /// `owner` has it as a member.
  explicit EmbeddingRounding(const QuantizingModifier& owner) : owner_(owner) {}

  std::string type() const override;
  const quant::QuantizationScheme* scheme_for(const quant::ModuleName& module) const override;
  bool needs_data() const override { return false; }
  std::vector<compression::StatisticPtr> statistics_wanted(const compression::ValueFacts&) const override { return {}; }
  std::optional<double> value_to_share(const compression::LinearWeight& embedding,
                                       const compression::Statistics* statistics) const override;
  std::int64_t row_step(const compression::LinearShape& embedding) const override;
  compression::CompressionCost cost(const std::vector<compression::LinearShape>& embeddings) const override;
  std::vector<compression::CompressedModule> compress(const std::vector<compression::LinearWeight>& embeddings,
                                                      const compression::Statistics* statistics,
                                                      PhaseTimes& times) const override;

 private:
  quant::ObserverSettings observer_of(const quant::QuantizationScheme* scheme) const;

  const QuantizingModifier& owner_;
};

/// What every quantizing modifier shares, with LLM Compressor's arguments and defaults: which modules, which schemes,
/// which observers (quantizing_arguments.cpp). Parsing throws RecipeError naming `where` and the argument; what is not implemented is refused.
class QuantizingModifier : public compression::Quantizer {
 public:
  const quant::QuantizationScheme* scheme_for(const quant::ModuleName& module) const override;
  std::vector<SchemeGroup> scheme_groups() const override;
  std::vector<std::string> ignore_entries() const override { return ignore_entries_; }
  std::int64_t row_step(const compression::LinearShape& linear) const override;
  std::optional<double> value_to_share(const compression::LinearWeight& linear,
                                       const compression::Statistics* statistics) const override;
  /// The arguments of every quantizing modifier.
  static const std::vector<Argument>& shared_arguments();
  const compression::Quantizer* for_embeddings() const override { return &embeddings_; }
  compression::RangeStatisticPtr input_range(const quant::QuantizationScheme& scheme) const override;
  std::optional<compression::AttentionScheme> attention_scheme(const quant::ModuleName& module) const override;
  const quant::QuantizationArgs* kv_cache() const override { return kv_cache_ ? &kv_cache_->args : nullptr; }

 protected:
  /// Arguments: targets (["Linear"]), ignore ([]), scheme (preset name, or {preset: targets}), config_groups,
  /// weight_observer, input_observer / observer {weights, input}, kv_cache_scheme, bypass_divisibility_checks (only false).
  /// `known`: all arguments that the derived class takes. Without `default_observer`, it is observer_without_inputs() of each group's weights.
  QuantizingModifier(const OrderedJson& arguments, const std::string& where, const std::vector<Argument>& known,
                     std::optional<quant::Observer> default_observer);

  /// Gives each group its activation order: what change() makes of the one that its own scheme names. `where` says whose.
  void set_actorder(const std::function<std::optional<std::string>(const std::optional<std::string>& own,
                                                                   const std::string& where)>& change);

  const quant::ObserverSettings& observer_for(const quant::QuantizationScheme* scheme) const;
  bool any_observer(quant::Observer observer) const;
  /// Whether any observer weighs errors with inputs.
  bool any_weighs_inputs() const;
  /// The mean squares of the columns' inputs times their number; undefined if the statistics do not have them.
  static at::Tensor importance_of(const compression::Statistics* statistics);

  /// Whether any parameters of values are stored.
  bool any_stored_values() const;
  /// Adds the statistic from which the static scale of a linear's input follows, if its scheme has one.
  void add_input_statistic(const compression::ValueFacts& facts, std::vector<compression::StatisticPtr>& wanted) const;

  /// What is observed of rows [first, ...) of a weight in their place.
  using ObservedRows = std::function<at::Tensor(const at::Tensor& rows, std::int64_t first)>;

  /// What the linear's scales are rounded to.
  kernels::ScaleFormat scale_format(const compression::LinearWeight& linear) const;

  /// Observes one weight; fp32 scales that are representable in the stored dtype, or overflow it. Measured as "observe".
  kernels::ChosenScales observe(const compression::LinearWeight& linear, const at::Tensor& importance,
                                PhaseTimes& times, const ObservedRows& observed = {}) const;

  /// Throws RecipeError naming the module if a scale has overflowed its stored dtype.
  static void require_finite(const std::vector<compression::LinearWeight>& linears,
                             const std::vector<kernels::ChosenScales>& scales);

  /// Adds what observing a linear, rounding it and keeping its result costs to what the linears before it cost.
  static void add_rounding_cost(const compression::LinearShape& linear, const quant::ObserverSettings& settings,
                                compression::CompressionCost& cost);

  /// Rounds one weight to nearest; codes as int8. Measured as "quantize".
  static at::Tensor round_to_nearest(const compression::LinearWeight& linear, const kernels::ChosenScales& scales,
                                     PhaseTimes& times);

  /// What compressing a linear has given, with its report. `tokens`: that its statistics saw.
  compression::CompressedModule result_of(const compression::LinearWeight& linear, const at::Tensor& codes,
                                          const kernels::ChosenScales& scales, std::int64_t tokens) const;

 private:
  friend class EmbeddingRounding;
  struct Group {
    std::string name, where;
    quant::QuantizationScheme scheme;
    quant::ObserverSettings observer;
    quant::InputObserverSettings input_observer;
  };
  /// How the values that attentions read are quantized.
  struct AttentionValues {
    quant::QuantizationArgs args;
    quant::InputObserverSettings observer;
  };
  struct AttentionGroup {
    std::string name, where;
    quant::QuantizationScheme scheme;
    quant::InputObserverSettings observer;
  };
  void read_groups(const OrderedJson& arguments, const std::string& where,
                   std::optional<quant::Observer> default_observer);
  void add_attention_group(const std::string& name, const std::string& where, quant::QuantizationScheme scheme);
  void read_kv_cache(const Json& arguments, const std::string& where);
  void add_group(const std::string& name, const std::string& where, quant::QuantizationScheme scheme,
                 std::optional<quant::Observer> default_observer);
  kernels::ChosenScales observe_by(const quant::ObserverSettings& settings, const compression::LinearWeight& linear,
                                   const at::Tensor& importance, PhaseTimes& times, const ObservedRows& observed) const;
  /// Rows of the whole weight beside those of `linear`.
  static std::vector<kernels::OtherRows> others_of(const compression::LinearWeight& linear,
                                                   const ObservedRows& observed);
  std::vector<Group> groups_;
  std::vector<AttentionGroup> attention_groups_;
  std::optional<AttentionValues> kv_cache_;
  std::optional<quant::GroupTargets> targets_, attention_targets_;
  std::vector<std::string> ignore_entries_;
  std::optional<quant::TargetList> ignore_;
  const Group& group_of(const quant::QuantizationScheme* scheme) const;
  std::optional<std::string> named_observer_, named_input_observer_;
  EmbeddingRounding embeddings_{*this};
};

/// A short description, such as "4-bit int, group 64".
std::string describe(const quant::QuantizationScheme& scheme);

}  // namespace layerpress::modifier
