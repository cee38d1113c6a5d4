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

#include "layerpress/base/json.h"
#include "layerpress/base/scratch_file.h"
#include "layerpress/graph/graph.h"
#include "layerpress/residency/host_copies.h"

namespace layerpress::residency {

/// Values between stages: one tensor per live value and batch, in memory while the limit lasts, else in a scratch file.
/// What is in the file comes back as a view of mapped pages, which the kernel may drop, after read_ahead() without delay.
///
/// A run that is killed can go on from the values stored at a subgraph's end when all of them are in the file: they are
/// described for the journal by boundary() and not overwritten before a later boundary is durable.
class ActivationStore {
 public:
  struct Options {
    std::uint64_t memory_limit = std::numeric_limits<std::uint64_t>::max();  ///< bytes held in memory
    std::filesystem::path scratch;  ///< file for what does not fit; empty: nothing may be over the limit
    at::Device home = at::kCPU;     ///< device on which the values in memory live
    /// Between the host, when it is home, and the device that computes; null: values come and go while both wait.
    std::shared_ptr<HostCopies> copies{};
  };

  explicit ActivationStore(std::size_t batches) : ActivationStore(batches, Options()) {}
  ActivationStore(std::size_t batches, Options options);
  ~ActivationStore();

  /// Changes Options::memory_limit for what comes from here on.
  void limit_memory(std::uint64_t bytes) { options_.memory_limit = bytes; }
  /// Changes Options::home for what comes from here on.
  void live_on(const at::Device& home) { options_.home = home; }
  const at::Device& home() const { return options_.home; }
  /// Sets Options::copies. REQUIRES: nothing is in memory.
  void copy_by(std::shared_ptr<HostCopies> copies) { options_.copies = std::move(copies); }

  /// Throws MemoryError when the limit is reached and there is no scratch file.
  void put(graph::ValueId value, std::size_t batch, at::Tensor tensor);
  /// On the home device, or with `copies` on the one that computes. Throws InternalError for a value that is not stored.
  at::Tensor get(graph::ValueId value, std::size_t batch) const;
  /// Says that these values of a batch are read next, behind the one that begins now.
  void read_ahead(const std::vector<graph::ValueId>& values, std::size_t batch) const;
  void drop(graph::ValueId value, std::size_t batch);
  void drop(graph::ValueId value);

  /// Where the values lie in the scratch file, with checksums; null when one of them does not. From now on their places
  /// are kept until boundary `index` + 1 is durable.
  Json boundary(std::size_t index, const std::vector<graph::ValueId>& values);
  /// Boundary `index` can be restored after a crash: earlier ones are not needed any more.
  void boundary_is_durable(std::size_t index);
  /// Takes over the values of an earlier run's boundary `index`, if they are exactly those of `shapes`. False, and nothing
  /// taken, when anything is not so or a byte is not as described.
  struct Expected {
    std::size_t index = 0;
    std::map<graph::ValueId, std::vector<std::vector<std::int64_t>>> shapes;  ///< by value, of each batch
  };
  bool restore(const Json& boundary, const Expected& expected);

  std::uint64_t memory_bytes() const { return memory_bytes_; }
  /// Everything that was ever written to the scratch file.
  std::uint64_t spilled_bytes() const { return spilled_bytes_; }

 private:
  struct Slot {
    at::Tensor tensor;  // in memory, or undefined
    ScratchFile::Extent extent;
    bool on_disk = false;
    std::vector<std::int64_t> shape;
    at::ScalarType dtype = at::kFloat;
    std::string checksum;
    std::int64_t held_by = -1;                              // boundary that needs the extent
    std::optional<HostCopies::Arriving> on_host{};          // where `tensor` comes from, with copies
    mutable std::optional<HostCopies::Arriving> fetched{};  // to where it is read next
  };
  std::uint64_t memory_of(const at::Tensor& tensor) const;
  void clear(Slot& slot);
  bool take(const Json& place, Slot& slot);
  void spill(Slot& slot, const at::Tensor& tensor);
  const Slot& slot(graph::ValueId value, std::size_t batch) const;

  std::size_t batches_;
  Options options_;
  std::unique_ptr<ScratchFile> scratch_;  // made when first needed
  std::map<graph::ValueId, std::vector<Slot>> values_;
  std::vector<Slot> dropped_but_held_;
  std::uint64_t memory_bytes_ = 0;
  std::uint64_t spilled_bytes_ = 0;
};

}  // namespace layerpress::residency
