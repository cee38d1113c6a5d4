#pragma once

namespace layerpress::kernels::cuda {

/// The type of a tensor's elements.
enum class Number { kBf16, kHalf, kFloat };

}  // namespace layerpress::kernels::cuda
