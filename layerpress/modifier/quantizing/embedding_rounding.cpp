#include "layerpress/modifier/quantizing/embedding_rounding.h"

#include "layerpress/modifier/quantizing/quantizing_modifier.h"

namespace layerpress::modifier {

std::string EmbeddingRounding::type() const { return owner_.type(); }

const quant::QuantizationScheme* EmbeddingRounding::scheme_for(const quant::ModuleName& module) const {
  return owner_.scheme_for(module);
}

std::optional<double> EmbeddingRounding::value_to_share(const compression::LinearWeight& embedding,
                                                        const compression::Statistics*) const {
  return owner_.QuantizingModifier::value_to_share(embedding, nullptr);
}

std::int64_t EmbeddingRounding::row_step(const compression::LinearShape& embedding) const {
  return owner_.QuantizingModifier::row_step(embedding);
}

quant::ObserverSettings EmbeddingRounding::observer_of(const quant::QuantizationScheme* scheme) const {
  return quant::without_inputs(*scheme->weights, owner_.observer_for(scheme));
}

compression::CompressionCost EmbeddingRounding::cost(const std::vector<compression::LinearShape>& embeddings) const {
  compression::CompressionCost cost;
  for (const compression::LinearShape& embedding : embeddings)
    QuantizingModifier::add_rounding_cost(embedding, observer_of(embedding.scheme), cost);
  return cost;
}

std::vector<compression::CompressedModule> EmbeddingRounding::compress(
    const std::vector<compression::LinearWeight>& embeddings, const compression::Statistics*, PhaseTimes& times) const {
  std::vector<compression::CompressedModule> results;
  std::vector<kernels::ChosenScales> chosen;
  for (const compression::LinearWeight& embedding : embeddings) {
    const quant::ObserverSettings settings = observer_of(embedding.scheme);
    chosen.push_back(owner_.observe_by(settings, embedding, {}, times, {}));
    const at::Tensor codes = QuantizingModifier::round_to_nearest(embedding, chosen.back(), times);
    results.push_back(owner_.result_of(embedding, codes, chosen.back(), /*tokens=*/0));
  }
  QuantizingModifier::require_finite(embeddings, chosen);
  return results;
}

}  // namespace layerpress::modifier
