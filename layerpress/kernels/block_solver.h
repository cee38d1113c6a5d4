#pragma once

#include "layerpress/kernels/cuda/column_block.h"
#include "layerpress/kernels/gptq.h"

namespace layerpress::kernels {

/// Solves one block of columns, on the device that the task's pointers belong to.
using ColumnBlockSolver = void (*)(const cuda::ColumnBlockTask& task);

/// The solver of a device's memory; null where this build has none for it.
ColumnBlockSolver column_block_solver(at::Device device);

/// gptq() for a device: `solve` takes all rows of a stack through a block of columns at once, a matrix product adds the feedback
/// of all earlier columns to the next. Beside the codes there are the stack in fp32 and, with `search`, the candidates of a group;
/// weights go in several stacks where one would have more than 2^28 elements.
GptqResult gptq_by_blocks(const std::vector<GptqWeight>& weights, const HessianFactor& factor, const Codebook& codebook,
                          std::int64_t block_size, const std::optional<GroupSearch>& search, ColumnBlockSolver solve);

}  // namespace layerpress::kernels
