#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "layerpress/quant/scheme.h"

namespace layerpress::quant {

/// A weight in codes. Shapes for weight [N, K]: scale [N, K/group] (group), [N, 1] (channel), [1] (tensor),
/// [ceil(N/rows), ceil(K/columns)] (block), in the dtype that is stored; zero_point int8 of scale's shape for
/// asymmetric schemes, else undefined. Codes [N, K] as code_dtype() says. Of a dense scheme, the codes are the values themselves
/// in the stored dtype, and the others are undefined; of an unchanged weight, all are.
struct QuantizedWeight {
  at::Tensor codes;
  at::Tensor scale;
  at::Tensor zero_point;
  at::Tensor
      global_scale{};  ///< fp32 [1], divisor of the scales (NVFP4), or factor of blocks (scaled_blocks); else undefined

  /// Calls function(tensor) for each tensor that is there.
  template <typename Function>
  void for_each_tensor(Function&& function) {
    for (at::Tensor* tensor : {&codes, &scale, &zero_point, &global_scale})
      if (tensor->defined()) function(*tensor);
  }
};

/// A tensor that a quantizer makes for a module, without its data.
struct NamedTensorSpec {
  std::string suffix;  ///< follows the module's name and a dot: "weight_scale"
  at::ScalarType dtype;
  std::vector<std::int64_t> shape;
};

struct NamedTensor {
  std::string suffix;
  at::Tensor tensor;
};

/// Shape of the scales (and zero points) of a weight [rows, columns].
std::vector<std::int64_t> scale_shape(const QuantizationArgs& weights, std::int64_t rows, std::int64_t columns);

}  // namespace layerpress::quant
