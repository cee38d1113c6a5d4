#pragma once

#include <optional>

#include "layerpress/kernels/cuda/column_block.h"
#include "layerpress/kernels/solver/gptq.h"

namespace layerpress::kernels {

/// Solves one block of columns on the device of the task's pointers.
using ColumnBlockSolver = void (*)(const cuda::ColumnBlockTask& task);

/// The solver for a device; null for a CPU.
ColumnBlockSolver column_block_solver(at::Device device);

/// gptq() for a device: `solve` takes all rows of a stack through a block of columns at once, a matrix product adds the feedback
/// of all earlier columns to the next. Weights go in several stacks where one would have more than 2^26 elements.
GptqResult gptq_by_blocks(const std::vector<GptqWeight>& weights, const HessianFactor& factor,
                          const ElementType& element, std::int64_t block_size, const std::optional<GroupSearch>& search,
                          ColumnBlockSolver solve);

/// The same for several problems of equal shapes at once, with all weights of a problem in one stack. `factors` has the
/// factor of each problem, as factorize_together returns them. REQUIRES: can_solve_together().
std::vector<GptqResult> gptq_together(const std::vector<std::vector<GptqWeight>>& problems,
                                      const HessianFactor& factors, const ElementType& element, std::int64_t block_size,
                                      const std::optional<GroupSearch>& search, ColumnBlockSolver solve);

/// The rows of a weight and the layout of their scales.
struct StackedRows {
  std::int64_t rows = 0;
  ScaleGrid grid;
};

/// Whether these weights can be solved in one stack, together with such stacks of other problems. If groups are
/// `searched`, all problems must begin groups at the same positions of their orders.
bool can_solve_together(const std::vector<StackedRows>& weights, std::int64_t columns, bool searched);

/// The number of problems with so many rows and columns that fill a launch; at least 1.
std::int64_t problems_at_once(std::int64_t rows, std::int64_t columns);

/// Bytes that gptq_by_blocks allocates at most on the device besides the returned codes, for so many rows in total; and
/// the same for gptq_together with so many problems.
std::uint64_t gptq_by_blocks_workspace(std::int64_t rows, std::int64_t columns);
std::uint64_t gptq_together_workspace(std::int64_t problems, std::int64_t rows, std::int64_t columns);

}  // namespace layerpress::kernels
