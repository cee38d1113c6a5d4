#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>

namespace layerpress::residency {

/// Copies of tensors between a device and pinned host memory that go on while the device computes. One thread uses it, but for
/// await().
class HostCopies {
 public:
  /// A tensor on its way. Nothing may read it before it has arrived.
  struct Arriving {
    at::Tensor tensor;
    std::shared_ptr<void> arrival;  ///< the implementation's
  };

  virtual ~HostCopies() = default;
  /// To pinned host memory: what the device's work so far leaves in `x`, into which nothing is written any more; or what is on
  /// the host already.
  virtual Arriving to_host(const at::Tensor& x) = 0;
  /// To the device, once `x` has arrived on the host.
  virtual Arriving to_device(const Arriving& x) = 0;
  /// The tensor on the device: whatever the device is told to do from now on waits for it.
  virtual at::Tensor on_device(const Arriving& x) = 0;
  /// Returns when a copy has arrived.
  virtual void await(const Arriving& x) const = 0;
  /// Called before each batch: waits until all is done that was under way when it was called the last time, so that memory is
  /// held for two batches at most.
  virtual void pace() = 0;

  /// What a tensor of this size takes on the host: pinned memory comes in powers of two.
  static std::uint64_t host_bytes(std::uint64_t bytes);
};

/// Null on a CPU.
std::unique_ptr<HostCopies> host_copies(const at::Device& device);

}  // namespace layerpress::residency
