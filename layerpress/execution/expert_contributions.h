#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>

#include "layerpress/graph/graph.h"

namespace layerpress::execution {

/// What experts contribute to their layers' outputs: for each expert the sum of g * ||f||, over the tokens that are routed to it, and
/// the number of these tokens. f is the expert's output, g the weight with which it is added.
class ExpertContributions {
 public:
  struct Figures {
    double sum = 0;
    std::int64_t tokens = 0;
  };

  /// Adds tokens of the expert whose node has the value `expert`: its outputs [tokens, features], their weights [tokens], and which
  /// of them count (undefined: all).
  void add(graph::ValueId expert, const at::Tensor& outputs, const at::Tensor& weights, const at::Tensor& counted);
  /// Zero for an expert that no token has reached.
  Figures of(graph::ValueId expert) const;

 private:
  std::map<graph::ValueId, Figures> figures_;
};

}  // namespace layerpress::execution
