#pragma once

namespace layerpress::gguf {

constexpr int kLanes = 4;

/// Candidates of a scale, or groups of values, that are computed side by side.
using Vector [[gnu::vector_size(kLanes * sizeof(float))]] = float;

inline Vector constant(float value) { return Vector{value, value, value, value}; }

/// nearest_integer for magnitudes below 2^22, as floats. NaN stays NaN.
inline Vector rounded(Vector value) { return (value + 12582912.0f) - 12582912.0f; }

}  // namespace layerpress::gguf
