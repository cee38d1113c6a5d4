#pragma once

#include <cstdint>
#include <cstring>

// Primitives for kernels that the host can compile, too: on a device each thread is one lane; in tests the lanes run
// one after the other.
#ifdef __CUDACC__
#define LAYERPRESS_LANES __device__ __forceinline__
#define LAYERPRESS_EVERYWHERE __host__ __device__
#define LAYERPRESS_UNROLL _Pragma("unroll")
#else
#define LAYERPRESS_LANES inline
#define LAYERPRESS_EVERYWHERE
#define LAYERPRESS_UNROLL
#endif

namespace layerpress::kernels::cuda {

constexpr std::int32_t kWarp = 32;

LAYERPRESS_LANES std::uint32_t bits_of(float value) {
#ifdef __CUDACC__
  return __float_as_uint(value);
#else
  std::uint32_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  return bits;
#endif
}

LAYERPRESS_LANES float float_of(std::uint32_t bits) {
#ifdef __CUDACC__
  return __uint_as_float(bits);
#else
  float value;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
#endif
}

#ifdef __CUDACC__
/// The lanes of a warp. A thread is one of them.
template <typename Lane>
struct DeviceWarp {
  std::int32_t index;
  Lane lane;

  template <typename Function>
  __device__ __forceinline__ void each(Function&& function) {
    function(index, lane);
  }
  /// The value of `function` on lane `own`.
  template <typename Function>
  __device__ __forceinline__ float of(std::int32_t own, Function&& function) {
    float result = 0;
    if (index == own) result = function(lane);
    return __shfl_sync(0xFFFFFFFFu, result, own);
  }
  template <typename Function>
  __device__ __forceinline__ float sum(Function&& function) {
    float result = function(lane);
#pragma unroll
    for (std::int32_t apart = kWarp / 2; apart > 0; apart /= 2)
      result += __shfl_xor_sync(0xFFFFFFFFu, result, apart);  // pairwise, so that every lane adds in the same order
    return result;
  }
  template <typename Function>
  __device__ __forceinline__ float largest(Function&& function) {
    float result = function(lane);
#pragma unroll
    for (std::int32_t apart = kWarp / 2; apart > 0; apart /= 2)
      result = fmaxf(result, __shfl_xor_sync(0xFFFFFFFFu, result, apart));
    return result;
  }
};
#endif

}  // namespace layerpress::kernels::cuda
