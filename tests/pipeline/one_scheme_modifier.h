#pragma once

#include <ATen/ATen.h>

#include <string>
#include <utility>
#include <vector>

#include "layerpress/compression/modifier.h"
#include "tests/pipeline/gram_users.h"

namespace layerpress::pipeline {

/// Integer weights with a scale per channel.
inline quant::QuantizationScheme channel_scheme(int bits, const std::string& format = "pack-quantized") {
  quant::QuantizationScheme scheme;
  scheme.weights.emplace();
  scheme.weights->num_bits = bits;
  scheme.weights->strategy = quant::Strategy::kChannel;
  scheme.format = format;
  return scheme;
}

/// A weight rounded to nearest, with the scheme of channel_scheme().
inline quant::QuantizedWeight rounded_by_channel(const at::Tensor& weight, const quant::QuantizationArgs& args) {
  const at::Tensor scale = weight.abs().amax(1, true) / (args.maximum_code() + 0.5);
  return {(weight / scale).clamp(args.minimum_code(), args.maximum_code()).round().to(at::kChar), scale, {}};
}

/// Gives every linear one scheme and wants its Gram matrix; any run of rows may be compressed alone.
class OneSchemeModifier : public compression::Quantizer {
 public:
  explicit OneSchemeModifier(quant::QuantizationScheme own) : scheme(std::move(own)) {}
  std::string type() const override { return "OneSchemeModifier"; }
  const quant::QuantizationScheme* scheme_for(const quant::ModuleName&) const override { return &scheme; }
  bool needs_data() const override { return true; }
  std::vector<compression::StatisticPtr> statistics_wanted(const compression::ValueFacts&) const override {
    return test::gram_only();
  }
  std::int64_t row_step(const compression::LinearShape&) const override { return 1; }
  compression::CompressionCost cost(const std::vector<compression::LinearShape>&) const override { return {}; }
  quant::QuantizationScheme scheme;
};

}  // namespace layerpress::pipeline
