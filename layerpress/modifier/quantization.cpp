#include "layerpress/modifier/quantization.h"

#include "layerpress/modifier/quantizing_modifier.h"

namespace layerpress::modifier {
namespace {

using quant::Observer;

class QuantizationModifier : public QuantizingModifier {
 public:
  QuantizationModifier(const Json& arguments, const std::string& where)
      : QuantizingModifier(arguments, where, {}, Observer::kMse) {}

  std::string type() const override { return "QuantizationModifier"; }
  bool needs_data() const override { return any_observer(Observer::kHessian); }
  runtime::StatisticsWanted statistics_wanted() const override { return {.gram = any_observer(Observer::kHessian)}; }

  std::vector<runtime::CompressedModule> compress(const std::vector<runtime::LinearWeight>& linears,
                                                  const runtime::Statistics* statistics,
                                                  PhaseTimes& times) const override {
    const auto phase = times.measure("quantize");
    const at::Tensor importance = statistics == nullptr ? at::Tensor() : statistics->gram.diagonal();
    std::vector<runtime::CompressedModule> results;
    for (const runtime::LinearWeight& linear : linears) {
      const quant::QuantizationArgs& args = *linear.scheme->weights;
      const kernels::ChosenScales scales = observe(linear, importance);
      const at::Tensor codes = kernels::round_to_nearest(
          linear.weight, quant::scale_grid(args, linear.weight.size(0), linear.weight.size(1)),
          quant::codebook_of(args), scales);
      runtime::CompressedModule result;
      result.weight = quant::to_quantized_weight(args, codes, scales, linear.scale_dtype);
      result.report.module = linear.module;
      result.report.scheme = describe(*linear.scheme);
      result.report.tokens = statistics == nullptr ? 0 : statistics->tokens;
      results.push_back(std::move(result));
    }
    return results;
  }
};

}  // namespace

std::unique_ptr<runtime::Modifier> make_quantization_modifier(const Json& arguments, const std::string& where) {
  return std::make_unique<QuantizationModifier>(arguments, where);
}

}  // namespace layerpress::modifier
