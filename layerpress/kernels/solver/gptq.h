#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "layerpress/kernels/scales/levels.h"
#include "layerpress/kernels/scales/scale_search.h"
#include "layerpress/kernels/solver/factorize.h"

namespace layerpress::kernels {

/// Scales per block of rows and group of columns, in fp32 (already rounded to the stored dtype).
struct ColumnScales {
  at::Tensor scale;       ///< [ceil(N / rows_per_group), ceil(K / columns_per_group)]
  at::Tensor zero_point;  ///< same shape, or undefined
  std::int64_t columns_per_group = 0;
  std::int64_t rows_per_group = 1;
};

/// A weight [N, K] of any float dtype, and its scales.
struct GptqWeight {
  at::Tensor weight;
  ColumnScales scales;
  /// Weights that are exactly 0 get the code of 0, whatever the feedback of earlier columns adds to them; later columns answer for it.
  bool keeps_zeros = false;
};

/// Whether the scales of such blocks can be chosen during the solve.
bool searches_groups(const ScaleGrid& grid);

struct GptqResult {
  std::vector<at::Tensor> codes;  ///< per weight, int8 [N, K]: signed codes, or the bytes of fp8 values
  double loss = 0;                ///< sum over all rows of (w - q) H (w - q)ᵀ, damping included
};

/// Quantizes weights that read one input, as one stack of rows, column by column with error feedback, `block_size`
/// columns at a time (which does not change the codes). Either all weights have zero points or none has.
///
/// With `search` the weights' scales are results: they are written to the given tensors, which must be contiguous and
/// of the right shape. The columns of a group must be consecutive in the factor's order.
///
/// Rows are independent: on the CPU threads take tiles of them through all columns, and no row's result depends on the
/// others or on the number of threads. Beside the codes there are in fp32 only the tiles under way.
GptqResult gptq(const std::vector<GptqWeight>& weights, const HessianFactor& factor, const ElementType& element,
                std::int64_t block_size = 128, const std::optional<GroupSearch>& search = {});

/// Bytes that gptq allocates at most on the CPU besides the codes, for a stack of `rows` rows in total with `groups`
/// column groups per row.
std::uint64_t gptq_workspace(std::int64_t rows, std::int64_t columns, std::int64_t groups);

}  // namespace layerpress::kernels
