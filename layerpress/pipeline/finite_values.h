#pragma once

#include <ATen/core/Tensor.h>

#include <map>

#include "layerpress/execution/batch_pieces.h"
#include "layerpress/execution/stage_runner.h"

namespace layerpress::pipeline {

/// Looks at values before they become statistics. One that is not finite would make the codes of its module, and of all behind it,
/// worthless without a sign of it.
class FiniteValues {
 public:
  explicit FiniteValues(const execution::RunContext& run) : run_(run) {}

  /// The rows that count of a value of these samples. Throws DataError naming a module that reads it and the sample. A device is not
  /// waited for: finish() throws, naming the module.
  void check(graph::ValueId value, const at::Tensor& rows, const execution::BatchPiece& piece);
  void finish();

 private:
  const execution::RunContext& run_;
  std::map<graph::ValueId, at::Tensor> greatest_;  // of values on a device, their magnitude_on_device()
};

}  // namespace layerpress::pipeline
