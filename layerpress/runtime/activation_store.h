#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <vector>

#include "layerpress/graph/graph.h"

namespace layerpress::runtime {

/// Values between stages: one tensor per live value and batch.
class ActivationStore {
 public:
  explicit ActivationStore(std::size_t batches) : batches_(batches) {}

  void put(graph::ValueId value, std::size_t batch, at::Tensor tensor) {
    auto& tensors = values_[value];
    tensors.resize(batches_);
    tensors.at(batch) = std::move(tensor);
  }
  /// Throws std::out_of_range for a value that is not stored.
  const at::Tensor& get(graph::ValueId value, std::size_t batch) const { return values_.at(value).at(batch); }
  void drop(graph::ValueId value, std::size_t batch) {
    const auto found = values_.find(value);
    if (found != values_.end()) found->second.at(batch) = at::Tensor();
  }
  void drop(graph::ValueId value) { values_.erase(value); }

 private:
  std::size_t batches_;
  std::map<graph::ValueId, std::vector<at::Tensor>> values_;
};

}  // namespace layerpress::runtime
