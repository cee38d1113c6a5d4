#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace layerpress::kernels {

/// What a program computes with. Values are [tokens, features]; everything else has the shape that the program knows.
struct ProgramInputs {
  std::vector<at::Tensor> values;
  std::vector<at::Tensor> weights;
  std::vector<at::Tensor> constants;
  at::Tensor token_ids;  ///< int64 [tokens]
  at::Tensor positions;  ///< int64 [tokens], or [axes, tokens] of a model with several positions for a token
};

/// A straight sequence of operators of ATen and of sequence_operators.h on the tokens of one or several samples. Its
/// text is JSON:
///
///   {"inputs": [{"shape": [1, -1, 64], "dtype": "float32"}], "weights": ["float32"],
///    "steps": [["aten.mul.Tensor", [{"i": 0}, 2.0], 0], ...], "result": {"v": 0}, "axis": 1}
///
/// -1 is the number of tokens. An argument is null, a number, a text, a list, or one of {"i": input}, {"w": weight},
/// {"c": constant}, {"v": step}, {"tokens": 1}, {"token_ids": 1}, {"positions": 1}, {"dtype": "float32"}, {"f": "inf"},
/// {"device": 1}, {"layout": "strided"}, {"memory_format": "contiguous_format"}, {"default": 1}. Step numbers are the
/// third parts of the steps. Positions are [1, tokens], or [axes, 1, tokens]. `axis` is the result's dimension of the tokens.
///
/// Programs are hostile until compiled. Only operators that compute new tensors from tensors and numbers are called:
/// nothing in place, nothing that reads or writes files, memory or processes.
class TensorProgram {
 public:
  /// Throws CheckpointError naming the step and the fault. Equal texts give one program.
  static std::shared_ptr<const TensorProgram> compile(const std::string& text);

  virtual ~TensorProgram() = default;
  /// The dtype that each weight must have.
  virtual const std::vector<at::ScalarType>& weight_types() const = 0;
  /// The result [tokens, features], contiguous. Throws CheckpointError naming the step that failed.
  virtual at::Tensor run(const ProgramInputs& inputs, std::int64_t tokens) const = 0;
};

/// Throws CheckpointError unless `name`, such as "aten.add.Tensor", is an operator that programs may call.
void check_operator(const std::string& name);

/// The dtype of a name such as "float32". Throws CheckpointError for others.
at::ScalarType dtype_of_name(const std::string& name);

}  // namespace layerpress::kernels
