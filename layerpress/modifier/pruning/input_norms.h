#pragma once

#include <functional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "layerpress/compression/modifier.h"

namespace layerpress::modifier {

/// Measures how large the input channels of linears are and leaves the weights as they are.
class InputNorms final : public compression::Quantizer {
 public:
  /// Takes, for each channel of a linear's input, the sum over samples of its 2-norm in a sample: fp64 [columns]. Each linear is measured by one
  /// rank.
  using Take = std::function<void(const std::string& module, const at::Tensor& norms)>;

  /// `modules`: the linears that are measured. `take` may be called by several threads.
  InputNorms(std::set<std::string> modules, Take take) : modules_(std::move(modules)), take_(std::move(take)) {}

  std::string type() const override { return "input norms"; }
  bool needs_data() const override { return true; }
  const quant::QuantizationScheme* scheme_for(const quant::ModuleName& module) const override;
  std::vector<compression::StatisticPtr> statistics_wanted(const compression::ValueFacts& facts) const override;
  bool propagates() const override { return false; }
  /// What is measured belongs to all rows.
  std::int64_t row_step(const compression::LinearShape&) const override { return 0; }
  compression::CompressionCost cost(const std::vector<compression::LinearShape>&) const override { return {}; }
  std::vector<compression::CompressedModule> compress(const std::vector<compression::LinearWeight>& linears,
                                                      const compression::Statistics* statistics,
                                                      PhaseTimes& times) const override;

 private:
  std::set<std::string> modules_;
  Take take_;
};

}  // namespace layerpress::modifier
