#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <functional>
#include <map>
#include <string>
#include <vector>

namespace layerpress::compression {

/// What a transform wants to know before it chooses the scale of a site: how much the outputs of the module around the balanced
/// readers would change with other parameters.
struct Trial {
  std::size_t candidates = 0;
  /// Other values of some parameters of the balanced readers, by name, each of the parameter's shape and dtype. It is called for
  /// one candidate after the other, for each batch, so that only one candidate is in memory.
  std::function<std::map<std::string, at::Tensor>(std::size_t candidate)> parameters;
};

/// Runs a trial of a site on all calibration tokens. Returns for each candidate the squared differences of the outputs from
/// those with the present parameters, summed over outputs and over the tokens of all ranks. Collective, and the same on all ranks.
using RunTrial = std::function<std::vector<double>(const Trial&)>;

}  // namespace layerpress::compression
