#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <string>

#include "layerpress/residency/weight_source.h"

namespace layerpress::test {

/// Parameters held in memory.
class MemoryWeights : public residency::WeightSource {
 public:
  std::map<std::string, at::Tensor> tensors;
  at::Tensor load(const std::string& name) const override { return tensors.at(name); }
  void will_need(const std::string&) const override {}
  void release(const std::string&) const override {}
};

}  // namespace layerpress::test
