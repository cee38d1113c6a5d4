#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "layerpress/gguf/blocks/grid_type.h"
#include "layerpress/kernels/solver/factorize.h"

namespace layerpress::gguf {

struct BlockGptqResult {
  at::Tensor blocks;  ///< uint8 [rows, row bytes]
  double loss = 0;    ///< sum over all rows of (w - q) H (w - q)ᵀ, damping included
};

/// Rounds rows of a weight [rows, columns] of any float dtype on the CPU to blocks, column by column with GPTQ's error feedback
/// (arXiv 2210.17323). The scales and minimums of a block are chosen when all columns before it are rounded: each squared error counts by
/// what later columns cannot repair of it, the pivot. The block is rounded `passes` times: the first pass chooses for its columns as
/// they are then, each other pass for what the pass before it had to round, which includes the feedback inside the block. A row keeps the pass with
/// the least loss.
///
/// The columns of a block are consecutive in the factor's order: FactorizeOptions::group_columns is block_values(), or there is no
/// activation order, with which the loss is a third less. Threads share the rows, and no row's bytes depend on the others. Throws InternalError if
/// shapes do not fit.
BlockGptqResult gptq_blocks(const GridType& type, const at::Tensor& weight, const kernels::HessianFactor& factor,
                            int passes = 2);

/// Bytes that gptq_blocks allocates at most besides the blocks.
std::uint64_t gptq_blocks_workspace(std::int64_t rows, std::int64_t columns);

}  // namespace layerpress::gguf
