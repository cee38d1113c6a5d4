#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace layerpress::kernels {

/// Smallest and largest element of every column of x [rows, columns]: fp32 [2, columns] on x's device. REQUIRES: a row. A column with
/// NaN has NaN. Any device; in one pass on a CPU.
at::Tensor channel_ranges(const at::Tensor& x);

/// Bytes that it allocates at most besides its result.
std::uint64_t channel_ranges_workspace_bytes(std::int64_t columns);

/// The same with ATen; also the plain implementation for tests.
at::Tensor plain_channel_ranges(const at::Tensor& x);

}  // namespace layerpress::kernels
