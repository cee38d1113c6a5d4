#include "layerpress/kernels/solver/gptq.h"

#include <ATen/ATen.h>

#include "layerpress/kernels/cpu/table.h"
#include "layerpress/kernels/solver/block_solver.h"
#include "layerpress/kernels/solver/column_solver.h"

namespace layerpress::kernels {

bool searches_groups(const ScaleGrid& grid) { return grid.block_rows == 1 && grid.block_columns <= cpu::kMaximumBlock; }

GptqResult gptq(const std::vector<GptqWeight>& weights, const HessianFactor& factor, const ElementType& element,
                std::int64_t block_size, const std::optional<GroupSearch>& search) {
  if (weights.empty()) return {};
  if (const ColumnBlockSolver solver = column_block_solver(factor.feedback.device()))
    return gptq_by_blocks(weights, factor, element, block_size, search, solver);
  GptqResult result;
  for (const GptqWeight& weight : weights) result.codes.push_back(at::empty(weight.weight.sizes(), at::kChar));
  result.loss = solve_columns(weights, factor, element, block_size, search, result.codes);
  return result;
}

}  // namespace layerpress::kernels
