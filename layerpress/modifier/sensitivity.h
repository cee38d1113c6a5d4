#pragma once

#include <memory>
#include <string>
#include <vector>

#include "layerpress/compression/modifier.h"

namespace layerpress::modifier {

/// Measures what candidate schemes cost at the outputs of linears and leaves the weights as they are. A report's figures are the
/// power of the output, tr(W H Wᵀ), and then for each candidate its loss, tr(D H Dᵀ), where H is the Gram matrix of the inputs and
/// D = W - dequantized(W) as the candidate rounds W without data. With `asks_what_gptq_leaves`, the last one is the power times the share of
/// the loss that GPTQ leaves on other data if errors are white: the sum of its pivots (kernels::HessianFactor), corrected for what few tokens overfit,
/// divided by tr(H).
class Sensitivity final : public compression::Quantizer {
 public:
  using Candidates = std::vector<std::unique_ptr<const compression::Quantizer>>;

  /// REQUIRES: candidates with the same targets, each with one scheme; those whose scheme has a global scale with one observer.
  explicit Sensitivity(Candidates candidates, bool asks_what_gptq_leaves = false);

  /// The schemes of the candidates, in order.
  std::vector<const quant::QuantizationScheme*> schemes() const;

  std::string type() const override { return "a comparison of schemes"; }
  bool needs_data() const override { return true; }
  const quant::QuantizationScheme* scheme_for(const quant::ModuleName& module) const override;
  std::vector<SchemeGroup> scheme_groups() const override { return candidates_.front()->scheme_groups(); }
  std::vector<std::string> ignore_entries() const override { return candidates_.front()->ignore_entries(); }
  std::vector<compression::StatisticPtr> statistics_wanted(const compression::ValueFacts& facts) const override;
  std::optional<double> value_to_share(const compression::LinearWeight& linear,
                                       const compression::Statistics* statistics) const override;
  bool propagates() const override { return false; }
  std::int64_t row_step(const compression::LinearShape& linear) const override;
  compression::CompressionCost cost(const std::vector<compression::LinearShape>& linears) const override;
  std::vector<compression::CompressedModule> compress(const std::vector<compression::LinearWeight>& linears,
                                                      const compression::Statistics* statistics,
                                                      PhaseTimes& times) const override;

 private:
  const quant::QuantizationScheme* scheme_of(std::size_t candidate) const;
  /// Measures the share. `upper`: of the Gram matrix of so many tokens.
  double left_by_gptq(const at::Tensor& upper, std::int64_t tokens, PhaseTimes& times) const;
  /// `gram`: the whole matrix.
  std::vector<double> figures_of(const compression::LinearWeight& linear, const at::Tensor& gram,
                                 PhaseTimes& times) const;

  Candidates candidates_;
  bool asks_what_gptq_leaves_;
};

/// The relative error of each candidate's outputs that a report's figures say, and then the share that GPTQ leaves of it, if it was asked for;
/// nothing where the inputs say nothing.
std::vector<std::optional<double>> relative_errors(const compression::ModuleReport& report);

}  // namespace layerpress::modifier
