#include "layerpress/residency/pinned_weights.h"

#include <ATen/ATen.h>

#include <utility>

namespace layerpress::residency {

PinnedWeights::PinnedWeights(const WeightSource& source, Pin pin) : source_(source), pin_(std::move(pin)) {}

at::Tensor PinnedWeights::pinned_copy(const at::Tensor& tensor) { return tensor.pin_memory(); }

at::Tensor PinnedWeights::load(const std::string& name) const {
  {
    const std::lock_guard lock(mutex_);
    if (const auto found = pinned_.find(name); found != pinned_.end()) return found->second;
  }
  return source_.load(name);
}

void PinnedWeights::fetch(const std::string& name) const {
  source_.fetch(name);
  at::Tensor copy = pin_(source_.load(name));
  source_.release(name);
  const std::lock_guard lock(mutex_);
  pinned_[name] = std::move(copy);
}

void PinnedWeights::release(const std::string& name) const {
  {
    const std::lock_guard lock(mutex_);
    pinned_.erase(name);
  }
  source_.release(name);
}

}  // namespace layerpress::residency
