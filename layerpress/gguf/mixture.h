#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "layerpress/gguf/architectures/architecture.h"

namespace layerpress::gguf {

/// A tensor of a GGUF, as far as the choice of its type depends on it.
struct TensorShape {
  std::string name;          ///< in the GGUF
  std::int64_t columns = 1;  ///< the values of a row, or of a head that moves, which a type's blocks divide
  std::int64_t rows = 1;
  std::int64_t matrices = 1;  ///< of a stack of experts
};

/// llama.cpp's names for what a file holds, such as Q4_K_M: one type for most tensors and better ones for some.
std::vector<std::string> mixture_names();
bool is_mixture(const std::string& name);

/// Those that are made of a type and have its name in theirs: Q4_K_S and Q4_K_M of Q4_K.
std::vector<std::string> mixtures_of(const std::string& type);

/// Whether all tensors of a mixture stay floats.
bool is_float_mixture(const std::string& name);

/// The number of a mixture in general.file_type.
std::uint32_t mixture_file_type(const std::string& mixture);

/// The type of each tensor, by ggml's name, in the order of `tensors`, which are all tensors of the file: exactly what llama-quantize
/// chooses. `has_importance`: whether rounding looks at importance. Vectors, norms, routers and convolutions are "F32".
/// Throws UsageError for an unknown mixture.
std::vector<std::string> mixture_types(const std::string& mixture, const Architecture& architecture,
                                       const std::vector<TensorShape>& tensors, bool has_importance);

/// Whether llama.cpp's quantizer takes the tensor; others stay floats.
bool may_be_quantized(const TensorShape& tensor);

/// `type`, or the type that llama.cpp takes if rows of `columns` values have no whole blocks of it.
std::string type_for_columns(const std::string& type, std::int64_t columns);

}  // namespace layerpress::gguf
