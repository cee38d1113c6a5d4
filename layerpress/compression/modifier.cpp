#include "layerpress/compression/modifier.h"

namespace layerpress::compression {

std::optional<double> Quantizer::value_to_share(const LinearWeight&, const Statistics*) const { return std::nullopt; }

RangeStatisticPtr Quantizer::input_range(const quant::QuantizationScheme&) const { return nullptr; }

std::optional<AttentionScheme> Quantizer::attention_scheme(const quant::ModuleName&) const { return std::nullopt; }

std::size_t Quantizer::tasks_at_once(const std::vector<LinearShape>&) const { return 1; }

std::uint64_t Quantizer::workspace_together(const std::vector<LinearShape>& linears, std::size_t tasks) const {
  const CompressionCost each = cost(linears);
  return each.workspace_bytes + (tasks - 1) * each.result_bytes;  // one after the other, keeping results
}

std::vector<std::vector<CompressedModule>> Quantizer::compress_together(const std::vector<CompressionTask>& tasks,
                                                                        PhaseTimes& times) const {
  std::vector<std::vector<CompressedModule>> results;
  for (const CompressionTask& task : tasks) results.push_back(compress(task.linears, task.statistics, times));
  return results;
}

}  // namespace layerpress::compression
