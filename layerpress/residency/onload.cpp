#include "layerpress/residency/onload.h"

#include <ATen/ATen.h>

#include <utility>

#include "layerpress/base/error.h"

namespace layerpress::residency {

Onload::Onload(const WeightSource& source, const std::vector<std::string>& names, const Placement& placement)
    : source_(source), placement_(placement) {
  for (const std::string& name : names) source_.will_need(name);
  for (const std::string& name : names) parameters_.try_emplace(name);
}

Onload::~Onload() {
  std::vector<std::string> names;
  for (const auto& [name, tensor] : parameters_) names.push_back(name);
  parameters_.clear();
  computed_.clear();  // destroy views before releasing their pages
  for (const std::string& name : names) source_.release(name);
}

namespace {

/// From pinned memory, the copy is queued on the device; otherwise host and device wait for it.
at::Tensor moved(const at::Tensor& tensor, const at::Device& device, at::ScalarType dtype) {
  return tensor.to(device, dtype, /*non_blocking=*/!device.is_cpu() && tensor.is_pinned());
}

}  // namespace

const at::Tensor& Onload::parameter(const std::string& name) const {
  const auto found = parameters_.find(name);
  if (found == parameters_.end()) throw InternalError("[residency.onload] parameter '{}' is not onloaded", name);
  if (!found->second.defined()) {
    const at::Tensor original = stored(name);
    found->second = moved(original, placement_.device, placement_.dtype);
    if (!found->second.is_same(original)) computed_.erase(name);  // one copy is enough
  }
  return found->second;
}

at::Tensor Onload::original(const std::string& name) const {
  const at::Tensor tensor = stored(name);
  return moved(tensor, placement_.device, tensor.scalar_type());
}

at::Tensor Onload::stored(const std::string& name) const {
  const auto found = changed_.find(name);
  if (found != changed_.end()) return found->second;
  if (!source_.computes(name)) return source_.load(name);
  at::Tensor& computed = computed_[name];
  if (!computed.defined()) computed = source_.load(name);
  return computed;
}

void Onload::change(const std::string& name, const at::Tensor& value) {
  parameters_.at(name) = at::Tensor();  // converted again on first use
  changed_[name] = value;
  computed_.erase(name);
}

Onload::Saved Onload::saved(const std::string& name) const {
  const auto changed = changed_.find(name);
  return {parameters_.at(name), changed == changed_.end() ? at::Tensor() : changed->second};
}

void Onload::restore(const std::string& name, Saved value) {
  parameters_.at(name) = std::move(value.parameter);
  if (value.changed.defined())
    changed_[name] = std::move(value.changed);
  else
    changed_.erase(name);
}

void Onload::reload(const std::string& name) {
  parameters_.at(name) = at::Tensor();
  changed_.erase(name);
  computed_.erase(name);
}

void Onload::replace(const std::string& name, const at::Tensor& value) {
  parameters_.at(name) = value.to(placement_.device, placement_.dtype);
  changed_.erase(name);
  computed_.erase(name);
}

}  // namespace layerpress::residency
