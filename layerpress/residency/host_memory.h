#pragma once

#include <cstdint>

namespace layerpress::residency {

/// Allocates this process's CPU tensors during its lifetime. Large blocks come directly from the kernel and return to
/// it, so that the process holds little more than its tensors need. Freed blocks are kept for the next tensor of about
/// the same size, because new pages cost more than many operations on them, but only as long as all blocks together
/// stay below the limit. At the limit, tensors get parts of longer kept blocks. One instance at a time; tensors may
/// outlive it.
class HostMemory {
 public:
  HostMemory();
  ~HostMemory();
  HostMemory(const HostMemory&) = delete;
  HostMemory& operator=(const HostMemory&) = delete;

  /// Limits the bytes of used and kept blocks together, minus the growth of the rest of the process from now on. Used
  /// blocks alone may exceed the limit; then no blocks are kept. Until this is called, the limit is 64 MiB above the
  /// used blocks.
  void limit(std::uint64_t bytes);
  std::uint64_t used_bytes() const;
};

}  // namespace layerpress::residency
