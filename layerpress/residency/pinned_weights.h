#pragma once

#include <functional>
#include <map>
#include <mutex>
#include <string>

#include "layerpress/residency/weight_source.h"

namespace layerpress::residency {

/// Parameters for a device. The fetching thread copies them to pinned memory, from which they reach the device at the
/// speed of the bus.
class PinnedWeights : public WeightSource {
 public:
  using Pin = std::function<at::Tensor(const at::Tensor&)>;
  explicit PinnedWeights(const WeightSource& source, Pin pin = pinned_copy);

  at::Tensor load(const std::string& name) const override;
  void will_need(const std::string& name) const override { source_.will_need(name); }
  void fetch(const std::string& name) const override;
  void release(const std::string& name) const override;

 private:
  static at::Tensor pinned_copy(const at::Tensor& tensor);
  const WeightSource& source_;
  const Pin pin_;
  mutable std::mutex mutex_;
  mutable std::map<std::string, at::Tensor> pinned_;
};

}  // namespace layerpress::residency
