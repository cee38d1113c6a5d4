#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "layerpress/plan/planned_sizes.h"

namespace layerpress::plan {

/// Values between stages, as ActivationStore would hold them.
class PlannedValues {
 public:
  /// Refers to both.
  PlannedValues(const PlanRequest& request, const PlannedSizes& sizes) : request_(request), sizes_(sizes) {}

  /// Returns the bytes that go to the scratch file.
  std::uint64_t put(graph::ValueId value, std::size_t batch);
  void drop(graph::ValueId value, std::size_t batch);
  void drop(graph::ValueId value) { values_.erase(value); }

  /// The bytes of a value in the scratch file; 0 if it is not there.
  std::uint64_t on_disk(graph::ValueId value, std::size_t batch) const;
  /// The bytes of a value in memory, as they are allocated; 0 if it is not stored there.
  std::uint64_t in_memory(graph::ValueId value, std::size_t batch) const;
  std::uint64_t memory_bytes() const { return memory_; }
  std::uint64_t disk_bytes() const { return disk_; }

 private:
  struct Stored {
    std::uint64_t bytes = 0;
    bool on_disk = false;
  };

  const PlanRequest& request_;
  const PlannedSizes& sizes_;
  std::map<graph::ValueId, std::vector<Stored>> values_;
  std::uint64_t memory_ = 0, disk_ = 0;
};

}  // namespace layerpress::plan
