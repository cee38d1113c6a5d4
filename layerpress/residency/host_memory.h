#pragma once

#include <cstdint>

namespace layerpress::residency {

/// Allocates the CPU tensors of this process while it lives: large blocks come straight from the kernel and go back to it,
/// so that the process holds what its tensors need and no more. Freed blocks are kept for the next tensor of about that size
/// (new pages cost more than many an operation on them), but only as far as all blocks together stay inside the limit.
/// One at a time; tensors may outlive it.
class HostMemory {
 public:
  HostMemory();
  ~HostMemory();
  HostMemory(const HostMemory&) = delete;
  HostMemory& operator=(const HostMemory&) = delete;

  /// Bytes that used and kept blocks may have together, less what the rest of the process grows from here on. Used blocks alone
  /// may exceed it; then nothing is kept. 64 MiB beyond what is used until this is called.
  void limit(std::uint64_t bytes);
  std::uint64_t used_bytes() const;
};

}  // namespace layerpress::residency
