#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "layerpress/quant/quantized_weight.h"

namespace layerpress::source {

/// A linear of one expert in a stacked tensor: rows of what is stored for the expert.
struct ExpertPart {
  std::string name;  ///< of the linear's weight
  std::int64_t expert = 0;
  std::int64_t first = 0, count = 0, step = 1;  ///< of rows
};

/// A weight that a checkpoint stores quantized. Its dtypes, shapes and tensors are checked; its content is checked when it is read.
struct StoredWeight {
  std::string name;  ///< of the weight that it stands for: "...q_proj.weight"
  std::vector<std::int64_t> shape;
  std::vector<std::string> parts;      ///< the stored tensors, by their full names
  quant::QuantizationScheme scheme{};  ///< what it is, in the terms of compressed-tensors, with targets
  std::uint64_t workspace_bytes = 0;   ///< of dequantize() beside its result

  /// The values on the CPU, rounded once to `dtype`. Multi-threaded; throws DamagedWeightsError.
  std::function<at::Tensor(at::ScalarType dtype)> dequantize{};

  /// Its codes and scales; empty where they are not known apart from the values. Throws as dequantize does.
  std::function<quant::QuantizedWeight()> read{};

  /// The same codes and scales as compressed-tensors stores them, by suffix of the module. Empty if it has no form for them.
  std::vector<quant::NamedTensorSpec> compressed_layout{};
  std::function<std::vector<quant::NamedTensor>()> compressed{};

  /// A stored parameter of the module's inputs by the name that compressed-tensors gives it ("input_scale"), or nothing.
  std::function<std::optional<at::Tensor>(const std::string& suffix)> input_parameter{};

  /// Of the stacked weights of a layer's experts: one linear's, whose parts are places in the same tensors.
  std::function<StoredWeight(const ExpertPart& part)> part_of_expert{};
  std::int64_t expert =
      -1;  ///< the place of the parts in the first dimension of the stored tensors; -1: they are whole
  std::int64_t sharers = 1;  ///< linears of equal size in one such place

  bool can_be_kept() const { return !compressed_layout.empty(); }
};

/// Dequantizes what `read` gives, a matrix of the weight's shape.
void dequantize_from(StoredWeight& weight, std::function<quant::QuantizedWeight()> read);

/// Keeps what `read` gives in the container format of the weight's scheme; scales have `scale_dtype` where the format leaves it open.
void keep_from(StoredWeight& weight, at::ScalarType scale_dtype, std::function<quant::QuantizedWeight()> read);

/// Keeps the static scale of the module's inputs, too: one number, in a dtype.
void keep_input_scale(StoredWeight& weight, at::ScalarType dtype, std::function<at::Tensor()> read);

}  // namespace layerpress::source
