#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>

namespace layerpress::residency {

/// Asynchronous copies of tensors between a device and pinned host memory. Only one thread uses it, except for await().
class HostCopies {
 public:
  /// A tensor being copied. It must not be read before it has arrived.
  struct Arriving {
    at::Tensor tensor;
    std::shared_ptr<void> arrival;  ///< state of the implementation
  };

  virtual ~HostCopies() = default;
  /// Copies to pinned host memory: the contents of `x` after the device's work so far; `x` must not be modified any
  /// more. `x` may already be on the host.
  virtual Arriving to_host(const at::Tensor& x) = 0;
  /// Copies to the device after `x` has arrived on the host.
  virtual Arriving to_device(const Arriving& x) = 0;
  /// The tensor on the device; later work of the device waits for it.
  virtual at::Tensor on_device(const Arriving& x) = 0;
  /// Returns when a copy has arrived.
  virtual void await(const Arriving& x) const = 0;
  /// Called before each batch. Waits until all copies that were in flight at the previous call are done, so that memory
  /// is held for two batches at most.
  virtual void pace() = 0;

  /// The size of a tensor on the host: pinned memory is allocated in powers of two.
  static std::uint64_t host_bytes(std::uint64_t bytes);
};

/// Null on a CPU.
std::unique_ptr<HostCopies> host_copies(const at::Device& device);

}  // namespace layerpress::residency
