#pragma once

#include <c10/core/Device.h>

#include <cstdint>

namespace layerpress::residency {

/// From here on the most memory that tensors hold on a device is counted anew. Does nothing for the CPU.
void restart_peak_device_bytes(const at::Device& device);

/// What may still be taken of a device's memory, a tenth left for what is not tensors: contexts, libraries' workspaces, gaps between
/// blocks. Unlimited for the CPU, and for devices that cannot say.
std::uint64_t free_device_bytes(const at::Device& device);

/// The most that tensors held on a device at once, in bytes; 0 for the CPU, and for devices whose allocator does not count.
std::uint64_t peak_device_bytes(const at::Device& device);

}  // namespace layerpress::residency
