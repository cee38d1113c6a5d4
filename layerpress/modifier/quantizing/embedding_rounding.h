#pragma once

#include <string>
#include <vector>

#include "layerpress/compression/modifier.h"
#include "layerpress/quant/rounding/observer.h"

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

}  // namespace layerpress::modifier
