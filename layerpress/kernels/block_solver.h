#pragma once

#include "layerpress/kernels/cuda/column_block.h"
#include "layerpress/kernels/gptq.h"

namespace layerpress::kernels {

/// Solves one block of columns, on the device that the task's pointers belong to.
using ColumnBlockSolver = void (*)(const cuda::ColumnBlockTask& task);

/// The solver of a device's memory; null where this build has none for it.
ColumnBlockSolver column_block_solver(at::Device device);

/// gptq() for a device: `solve` takes all rows of a stack through a block of columns at once, a matrix product adds the feedback
/// of all earlier columns to the next. Weights go in several stacks where one would have more than 2^26 elements.
GptqResult gptq_by_blocks(const std::vector<GptqWeight>& weights, const HessianFactor& factor, const Codebook& codebook,
                          std::int64_t block_size, const std::optional<GroupSearch>& search, ColumnBlockSolver solve);

/// The same for problems of equal shapes, each one's weights in one stack, all problems at once. `factors`: theirs, as
/// factorize_together gives them. REQUIRES: can_solve_together().
std::vector<GptqResult> gptq_together(const std::vector<std::vector<GptqWeight>>& problems,
                                      const HessianFactor& factors, const Codebook& codebook, std::int64_t block_size,
                                      const std::optional<GroupSearch>& search, ColumnBlockSolver solve);

/// Rows of a weight and how their scales lie.
struct StackedRows {
  std::int64_t rows = 0;
  ScaleGrid grid;
};

/// Whether these weights can be solved in one stack, and with such ones of other problems. With groups that are `searched`,
/// orders must not differ in where groups begin.
bool can_solve_together(const std::vector<StackedRows>& weights, std::int64_t columns, bool searched);

/// Problems of so many rows and columns that fill a stack; at least 1.
std::int64_t problems_at_once(std::int64_t rows, std::int64_t columns);

/// Bytes that gptq_by_blocks allocates at most on the device beside the codes it returns, for so many rows in all; and
/// gptq_together for so many problems.
std::uint64_t gptq_by_blocks_workspace(std::int64_t rows, std::int64_t columns);
std::uint64_t gptq_together_workspace(std::int64_t problems, std::int64_t rows, std::int64_t columns);

}  // namespace layerpress::kernels
