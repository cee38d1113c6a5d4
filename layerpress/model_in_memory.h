#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <string>
#include <vector>

#include "layerpress/base/json.h"

namespace layerpress {

/// A model whose parameters are tensors of this process, under the names that its checkpoint would have. A parameter that two
/// modules share occurs once. oneshot() reads the tensors where they are (OneshotOptions::model_in_memory).
struct ModelInMemory {
  Json config;  ///< config.json
  std::map<std::string, at::Tensor> tensors;
  std::string graph{};  ///< folder of the graph that PyTorch exported of it, for what no architecture describes; or ""
  std::string code{};   ///< folder of the Python code that the config's auto_map names; or ""
};

/// Gives the tensors of a model in memory the values that a compressed checkpoint of it stands for: `output` is what oneshot() made
/// of the model. Returns the names of the tensors that were changed, sorted. Throws CheckpointError if the two do not fit.
std::vector<std::string> load_result(const ModelInMemory& model, const std::string& output);

}  // namespace layerpress
