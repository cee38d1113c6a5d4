#include "layerpress/base/text.h"
#include "layerpress/compression/statistics/gram_statistic.h"
#include "layerpress/compression/statistics/square_sum.h"
#include "layerpress/modifier/arguments/argument.h"
#include "layerpress/modifier/quantizing/block_quantizer.h"
#include "layerpress/modifier/quantizing/quantizing_modifier.h"
#include "layerpress/quant/rounding/value_parameters.h"
#include "layerpress/quant/scheme_name.h"

namespace layerpress::modifier {
namespace {

using quant::Observer;

class QuantizationModifier : public QuantizingModifier {
 public:
  QuantizationModifier(const OrderedJson& arguments, const std::string& where)
      : QuantizingModifier(arguments, where, shared_arguments(), {}) {
    if (any_observer(Observer::kGptq))
      throw RecipeError(
          "[recipe.modifier] {}: observer 'gptq' requires GPTQModifier (--algorithm gptq); use it, or observer hessian",
          where);
  }

  std::string type() const override { return "QuantizationModifier"; }
  bool needs_data() const override { return any_weighs_inputs() || any_stored_values(); }
  std::string data_use() const override {
    std::vector<std::string> uses;
    if (any_weighs_inputs()) uses.emplace_back("an observer that weighs errors by inputs");
    for (const SchemeGroup& group : scheme_groups())
      if (quant::has_stored_inputs(*group.scheme)) {
        const std::string name = quant::scheme_name(*group.scheme);
        uses.push_back("static scales of inputs" + (name.empty() ? "" : " in " + name));
      }
    if (kv_cache() != nullptr) uses.emplace_back("static scales of keys and values");
    return uses.empty() ? type() : fmt::format("{} ({})", type(), join(uses));
  }
  std::vector<compression::StatisticPtr> statistics_wanted(const compression::ValueFacts& facts) const override {
    std::vector<compression::StatisticPtr> wanted;
    if (any_observer(Observer::kHessian))
      wanted.push_back(std::make_shared<compression::GramStatistic>());
    else if (any_weighs_inputs())
      wanted.push_back(std::make_shared<compression::SquareSum>());
    add_input_statistic(facts, wanted);
    return wanted;
  }
  /// Like LLM Compressor, it measures the ranges of values in the model whose weights are not rounded.
  bool propagates() const override { return any_weighs_inputs() || !any_stored_values(); }

  compression::CompressionCost cost(const std::vector<compression::LinearShape>& linears) const override {
    compression::CompressionCost cost;
    for (const compression::LinearShape& linear : linears) add_rounding_cost(linear, observer_for(linear.scheme), cost);
    return cost;
  }

  std::vector<compression::CompressedModule> compress(const std::vector<compression::LinearWeight>& linears,
                                                      const compression::Statistics* statistics,
                                                      PhaseTimes& times) const override {
    // There may be statistics of the value for other purposes only.
    const at::Tensor importance = importance_of(statistics);
    std::vector<compression::CompressedModule> results;
    std::vector<kernels::ChosenScales> chosen;
    for (const compression::LinearWeight& linear : linears) {
      chosen.push_back(observe(linear, importance, times));
      const kernels::ChosenScales& scales = chosen.back();
      const at::Tensor codes = round_to_nearest(linear, scales, times);
      results.push_back(result_of(linear, codes, scales, statistics == nullptr ? 0 : statistics->tokens));
    }
    require_finite(linears, chosen);
    return results;
  }
};

}  // namespace

/// Round-to-nearest: every weight to its nearest code, independent of data, unless the observer is "hessian".
/// Default observer: mse, and squared_error with NVFP4 and MX. Groups in llama.cpp's types: block_quantizer.h.
Kind quantization_modifier() {
  const auto make_of = [](const OrderedJson& arguments, const std::string& where) {
    return names_block_types(arguments) ? make_block_quantizer(arguments, where, BlockRounding::kNearest)
                                        : make<QuantizationModifier>(arguments, where);
  };
  return {"QuantizationModifier", make_of, QuantizingModifier::shared_arguments()};
}

}  // namespace layerpress::modifier
