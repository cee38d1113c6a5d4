#include "layerpress/plan/planned_values.h"

#include "layerpress/residency/host_copies.h"

namespace layerpress::plan {

std::uint64_t PlannedValues::put(graph::ValueId value, std::size_t batch) {
  std::vector<Stored>& stored = values_[value];
  stored.resize(request_.batches.size());
  const std::uint64_t bytes = sizes_.kept_bytes(value, batch);
  Stored& slot = stored[batch];
  slot.bytes = sizes_.copies() ? residency::HostCopies::host_bytes(bytes) : bytes;
  slot.on_disk = slot.bytes > request_.activation_limit || memory_ > request_.activation_limit - slot.bytes;
  (slot.on_disk ? disk_ : memory_) += slot.bytes;
  return slot.on_disk ? slot.bytes : 0;
}

void PlannedValues::drop(graph::ValueId value, std::size_t batch) {
  const auto found = values_.find(value);
  if (found == values_.end()) return;
  Stored& slot = found->second[batch];
  (slot.on_disk ? disk_ : memory_) -= slot.bytes;
  slot = Stored();
}

std::uint64_t PlannedValues::on_disk(graph::ValueId value, std::size_t batch) const {
  const auto found = values_.find(value);
  return found != values_.end() && found->second[batch].on_disk ? found->second[batch].bytes : 0;
}

std::uint64_t PlannedValues::in_memory(graph::ValueId value, std::size_t batch) const {
  const auto found = values_.find(value);
  return found != values_.end() && !found->second[batch].on_disk ? found->second[batch].bytes : 0;
}

}  // namespace layerpress::plan
