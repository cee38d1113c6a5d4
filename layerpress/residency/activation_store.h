#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "layerpress/base/files/scratch_file.h"
#include "layerpress/base/json.h"
#include "layerpress/graph/graph.h"
#include "layerpress/residency/host_copies.h"

namespace layerpress::residency {

/// Values between stages: one tensor per live value and batch, in memory up to the limit, then in a scratch file.
/// Values in the file are returned as views of mapped pages, which the kernel may drop; after read_ahead() there is no
/// delay.
///
/// A killed run can continue from the values stored at the end of a subgraph if all of them are in the file. boundary()
/// describes them for the journal, and they are not overwritten before a later boundary is durable.
class ActivationStore {
 public:
  struct Options {
    std::uint64_t memory_limit = std::numeric_limits<std::uint64_t>::max();  ///< bytes kept in memory
    std::filesystem::path scratch;  ///< file for values beyond the limit; empty: none may exceed it
    at::Device home = at::kCPU;     ///< device of the values in memory
    /// Asynchronous copies between the host, if it is home, and the computing device; null: copies are synchronous.
    std::shared_ptr<HostCopies> copies{};
  };

  explicit ActivationStore(std::size_t batches) : ActivationStore(batches, Options()) {}
  ActivationStore(std::size_t batches, Options options);
  ~ActivationStore();

  /// Changes Options::memory_limit for values stored from now on.
  void limit_memory(std::uint64_t bytes) { options_.memory_limit = bytes; }
  /// Changes Options::home for values stored from now on.
  void live_on(const at::Device& home) { options_.home = home; }
  const at::Device& home() const { return options_.home; }
  /// Sets Options::copies. REQUIRES: no values are in memory.
  void copy_by(std::shared_ptr<HostCopies> copies) { options_.copies = std::move(copies); }

  /// Throws MemoryError if the limit is reached and there is no scratch file.
  void put(graph::ValueId value, std::size_t batch, at::Tensor tensor);
  /// On the home device, or, with `copies`, on the computing device. Throws InternalError for a value that is not
  /// stored.
  at::Tensor get(graph::ValueId value, std::size_t batch) const;
  /// Announces that these values of a batch are read next, after the batch that begins now.
  void read_ahead(const std::vector<graph::ValueId>& values, std::size_t batch) const;
  void drop(graph::ValueId value, std::size_t batch);
  void drop(graph::ValueId value);

  /// The positions of the values in the scratch file, with checksums; null if one of them is not there. From now on
  /// these positions are kept until boundary `index` + 1 is durable.
  Json boundary(std::size_t index, const std::vector<graph::ValueId>& values);
  /// Boundary `index` can be restored after a crash, so earlier ones are no longer needed.
  void boundary_is_durable(std::size_t index);
  /// Takes over the values of an earlier run's boundary `index` if they are exactly those of `shapes`. If anything
  /// differs, even a byte, returns false and takes over nothing.
  struct Expected {
    std::size_t index = 0;
    std::map<graph::ValueId, std::vector<std::vector<std::int64_t>>> shapes;  ///< by value, in each batch
  };
  bool restore(const Json& boundary, const Expected& expected);

  std::uint64_t memory_bytes() const { return memory_bytes_; }
  /// Total bytes written to the scratch file.
  std::uint64_t spilled_bytes() const { return spilled_bytes_; }

 private:
  struct Slot {
    at::Tensor tensor;  // in memory, or undefined
    ScratchFile::Extent extent;
    bool on_disk = false;
    std::vector<std::int64_t> shape;
    at::ScalarType dtype = at::kFloat;
    std::string checksum;
    std::int64_t held_by = -1;                              // boundary that still needs the extent
    std::optional<HostCopies::Arriving> on_host{};          // with copies: the host copy behind `tensor`
    mutable std::optional<HostCopies::Arriving> fetched{};  // with copies: the device copy for the next read
  };
  std::uint64_t memory_of(const at::Tensor& tensor) const;
  void clear(Slot& slot);
  bool take(const Json& place, Slot& slot);
  void spill(Slot& slot, const at::Tensor& tensor);
  const Slot& slot(graph::ValueId value, std::size_t batch) const;

  std::size_t batches_;
  Options options_;
  std::unique_ptr<ScratchFile> scratch_;  // created on first use
  std::map<graph::ValueId, std::vector<Slot>> values_;
  std::vector<Slot> dropped_but_held_;
  std::uint64_t memory_bytes_ = 0;
  std::uint64_t spilled_bytes_ = 0;
};

}  // namespace layerpress::residency
