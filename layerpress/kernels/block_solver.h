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

/// Bytes that gptq_by_blocks allocates at most on the device beside the codes it returns, for so many rows in all.
std::uint64_t gptq_by_blocks_workspace(std::int64_t rows, std::int64_t columns);

}  // namespace layerpress::kernels
