#pragma once

#include "layerpress/kernels/cuda/scale_search.h"
#include "layerpress/kernels/scales/scale_search.h"

namespace layerpress::kernels {

/// Searches all blocks of one weight on the device of the task's pointers.
using RowSearcher = void (*)(const cuda::ScaleSearchTask& task);

/// The searcher for a device; null for a CPU.
RowSearcher row_searcher(at::Device device);

/// search_scales() for blocks of one row by a device's kernel.
ChosenScales search_rows_by(RowSearcher searcher, const at::Tensor& weight, const ScaleGrid& grid,
                            const RangeRule& rule, const ScaleSearch& search, const ScaleFormat& stored,
                            const at::Tensor& importance, const std::vector<OtherRows>& others = {});

}  // namespace layerpress::kernels
