#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "layerpress/kernels/solver/gptq.h"

namespace layerpress::kernels {

/// The GPTQ recursion on the CPU; see gptq(). Threads take tiles of rows through all columns, `block_size` at a time, or group by
/// group with `search`. Chooses codes, int8 [N, K] per weight, beside which there are in fp32 only the tiles under way; returns
/// the loss.
double solve_columns(const std::vector<GptqWeight>& weights, const HessianFactor& factor, const ElementType& element,
                     std::int64_t block_size, const std::optional<GroupSearch>& search, std::vector<at::Tensor>& codes);

}  // namespace layerpress::kernels
