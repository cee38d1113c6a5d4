#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "layerpress/kernels/numbers/number_formats.h"

namespace layerpress::quant {

/// The global scale of NVFP4 that is a power of two, so that e4m3 holds the powers of two of weights that were stored in MXFP4. The
/// greatest has room, and one is lost only if it is less than 2^-17 of the greatest. `largest`: the greatest weight.
float global_scale_of_powers(double largest);

/// For each group of columns, the power of two that `stored` (e4m3) holds and times which all weights of the group are values of
/// e2m1, so that nothing is rounded: fp32 [rows, groups], 0 where there is none. Blocks of MXFP4 have one. Any device.
at::Tensor exact_scales(const at::Tensor& weight, std::int64_t group_size, const kernels::ScaleFormat& stored);

}  // namespace layerpress::quant
