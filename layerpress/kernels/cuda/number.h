#pragma once

namespace layerpress::kernels::cuda {

/// What a tensor's elements are.
enum class Number { kBf16, kHalf, kFloat };

}  // namespace layerpress::kernels::cuda
