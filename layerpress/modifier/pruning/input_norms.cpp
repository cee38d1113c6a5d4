#include "layerpress/modifier/pruning/input_norms.h"

#include <ATen/ATen.h>

#include <memory>

#include "layerpress/compression/statistics/sample_norms.h"

namespace layerpress::modifier {

const quant::QuantizationScheme* InputNorms::scheme_for(const quant::ModuleName& module) const {
  return modules_.contains(module.name) ? &quant::unchanged_scheme() : nullptr;
}

std::vector<compression::StatisticPtr> InputNorms::statistics_wanted(const compression::ValueFacts&) const {
  return {std::make_shared<compression::SampleNorms>()};
}

std::vector<compression::CompressedModule> InputNorms::compress(const std::vector<compression::LinearWeight>& linears,
                                                                const compression::Statistics* statistics,
                                                                PhaseTimes&) const {
  if (statistics == nullptr) throw InternalError("[modifier.input_norms] no statistics for {}", linears.front().module);
  const at::Tensor norms = statistics->of<compression::SampleNorms>().to(at::kCPU, at::kDouble).view({-1});
  std::vector<compression::CompressedModule> modules;
  for (const compression::LinearWeight& linear : linears) {
    modules.emplace_back();
    compression::ModuleReport& report = modules.back().report;
    report.module = linear.module, report.scheme = linear.scheme->format;
    report.tokens = statistics->tokens;
    take_(linear.module, norms);
  }
  return modules;
}

}  // namespace layerpress::modifier
