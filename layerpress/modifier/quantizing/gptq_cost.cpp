// The cost of GptqModifier::compress.
#include <algorithm>

#include "layerpress/modifier/quantizing/gptq_modifier.h"
#include "layerpress/modifier/quantizing/output_power.h"

namespace layerpress::modifier {

compression::CompressionCost GptqModifier::cost(const std::vector<compression::LinearShape>& linears) const {
  compression::CompressionCost cost;
  const std::int64_t columns = linears.front().columns;
  std::uint64_t held = moves(linears) ? add_propagation_cost(linears, cost) : 0;
  const std::uint64_t factorizing = held + kernels::factorize_workspace(columns, linears.front().device);
  held += kernels::factor_bytes(columns);
  for (const auto& [order, stacks] : stacks_of(linears)) {
    cost.flops["factorize"] += factorize_flops(columns);
    cost.workspace_bytes = std::max(cost.workspace_bytes, factorizing + cost.result_bytes);
    for (const Stack& stack : stacks) add_stack_cost(linears, stack, held, cost);
  }
  return cost;
}

void GptqModifier::add_stack_cost(const std::vector<compression::LinearShape>& linears, const Stack& stack,
                                  std::uint64_t held, compression::CompressionCost& cost) const {
  for (const Stack& batch : batches_of(linears, stack, moves(linears))) add_batch_cost(linears, batch, held, cost);
  cost.workspace_bytes =
      std::max(cost.workspace_bytes, held + cost.result_bytes + output_power_workspace(linears[stack.front()].columns));
}

void GptqModifier::add_batch_cost(const std::vector<compression::LinearShape>& linears, const Stack& batch,
                                  std::uint64_t held, compression::CompressionCost& cost) const {
  const quant::QuantizationArgs& args = *linears[batch.front()].scheme->weights;
  const quant::ObserverSettings& settings = observer_for(linears[batch.front()].scheme);
  const std::int64_t columns = linears[batch.front()].columns;
  std::uint64_t search = 0, results = 0, moved = 0;
  std::int64_t rows = 0, groups = 0;
  for (const std::size_t i : batch) {
    const compression::LinearShape& linear = linears[i];
    const auto elements = static_cast<double>(linear.rows) * static_cast<double>(columns);
    const auto searched = group_search(*linear.scheme, quant::scale_format(args, linear.dtype), columns);
    if (!searched) cost.flops["observe"] += quant::observe_flops(args, settings, elements);
    const std::int64_t width = quant::scale_grid(args, linear.rows, columns).block_columns;
    cost.flops["solve"] += solve_flops(elements, static_cast<double>(columns), width, searched);
    if (descends(linear))
      cost.flops["solve"] += kernels::descend_flops(elements, static_cast<double>(columns), *descent_);
    search += quant::observe_workspace(args, settings, linear.rows, columns, linear.device);
    results += quant::quantized_bytes(args, linear.rows, columns, linear.dtype);
    rows += linear.rows;
    groups = (columns - 1) / width + 1;
  }
  std::uint64_t solving = linears[batch.front()].device.is_cpu() ? kernels::gptq_workspace(rows, columns, groups)
                                                                 : kernels::gptq_by_blocks_workspace(rows, columns);
  if (descends(linears[batch.front()])) solving = std::max(solving, kernels::descend_workspace(rows, columns, groups));
  std::uint64_t working = results + search + solving;
  if (moves(linears)) {
    moved = sizeof(float) * static_cast<std::uint64_t>(rows * columns);
    working = std::max(working, kernels::moving_workspace(columns));
  }
  cost.workspace_bytes = std::max(cost.workspace_bytes, held + cost.result_bytes + moved + working);
  cost.result_bytes += results;
}

}  // namespace layerpress::modifier
