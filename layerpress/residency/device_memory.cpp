#include "layerpress/residency/device_memory.h"

#include <ATen/Context.h>
#include <c10/core/CachingDeviceAllocator.h>

#include <limits>

namespace layerpress::residency {
namespace {

/// Null if the device has no allocator that counts.
c10::DeviceAllocator* counting_allocator(const at::Device& device) {
  if (device.is_cpu()) return nullptr;
  at::globalContext().lazyInitDevice(device.type());  // there is no allocator before the first computation
  return dynamic_cast<c10::DeviceAllocator*>(c10::GetAllocator(device.type()));
}

}  // namespace

void restart_peak_device_bytes(const at::Device& device) {
  c10::DeviceAllocator* allocator = counting_allocator(device);
  if (allocator != nullptr && allocator->initialized()) allocator->resetPeakStats(device.index());
}

std::uint64_t free_device_bytes(const at::Device& device) {
  c10::DeviceAllocator* allocator = counting_allocator(device);
  if (allocator == nullptr || !allocator->initialized()) return std::numeric_limits<std::uint64_t>::max();
  return allocator->getMemoryInfo(device.index()).first / 10 * 9;
}

std::uint64_t peak_device_bytes(const at::Device& device) {
  c10::DeviceAllocator* allocator = counting_allocator(device);
  if (allocator == nullptr || !allocator->initialized()) return 0;
  constexpr auto kAll = static_cast<std::size_t>(c10::CachingAllocator::StatType::AGGREGATE);
  return static_cast<std::uint64_t>(allocator->getDeviceStats(device.index()).allocated_bytes[kAll].peak);
}

}  // namespace layerpress::residency
