#pragma once

#include <c10/core/Device.h>

#include <cstdint>

namespace layerpress::residency {

/// Restarts the measurement of the peak of tensor memory on a device. Does nothing for the CPU.
void restart_peak_device_bytes(const at::Device& device);

/// The memory that may still be allocated on a device. A tenth is reserved for other uses: contexts, libraries'
/// workspaces, fragmentation. Unlimited for the CPU, and for devices that do not report it.
std::uint64_t free_device_bytes(const at::Device& device);

/// The peak of tensor memory on a device, in bytes; 0 for the CPU, and for devices whose allocator does not count.
std::uint64_t peak_device_bytes(const at::Device& device);

}  // namespace layerpress::residency
