#pragma once

#include <c10/core/CachingDeviceAllocator.h>

#include <cstddef>
#include <map>
#include <mutex>
#include <utility>

namespace layerpress::emulated_gpu {

inline const c10::Device kDevice(c10::DeviceType::CUDA, 0);

/// The allocator of the device. Its memory can be read and written only while a HostAccess to it exists.
class DeviceMemory : public c10::DeviceAllocator {
 public:
  static DeviceMemory& instance();

  /// The allocation that a pointer leads into; throws if there is none. Counts who uses it.
  void* open(const void* pointer);
  void close(void* allocation);

  c10::DataPtr allocate(std::size_t bytes) override;
  c10::DeleterFnPtr raw_deleter() const override;
  void copy_data(void* to, const void* from, std::size_t bytes) const override;
  bool initialized() override { return true; }
  void emptyCache(c10::MempoolId_t) override {}
  void recordStream(const c10::DataPtr&, c10::Stream) override {}
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(c10::DeviceIndex) override;
  void resetAccumulatedStats(c10::DeviceIndex) override {}
  void resetPeakStats(c10::DeviceIndex) override;
  std::pair<std::size_t, std::size_t> getMemoryInfo(c10::DeviceIndex) override;

 private:
  DeviceMemory();
  static void release(void* pointer);

  struct Allocation {
    std::size_t bytes = 0;
    int users = 0;
  };

  std::mutex mutex_;
  std::map<const char*, Allocation> allocations_;
  std::size_t capacity_, used_ = 0, peak_ = 0;
};

/// Lets the host use the device's memory that a pointer leads to.
class HostAccess {
 public:
  explicit HostAccess(const void* pointer)
      : allocation_(pointer == nullptr ? nullptr : DeviceMemory::instance().open(pointer)) {}
  HostAccess(HostAccess&& other) noexcept : allocation_(std::exchange(other.allocation_, nullptr)) {}
  HostAccess(const HostAccess&) = delete;
  HostAccess& operator=(const HostAccess&) = delete;
  HostAccess& operator=(HostAccess&&) = delete;
  ~HostAccess() {
    if (allocation_ != nullptr) DeviceMemory::instance().close(allocation_);
  }

 private:
  void* allocation_;
};

}  // namespace layerpress::emulated_gpu
