#include "tests/emulated_gpu/device_memory.h"

#include <c10/util/Exception.h>
#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>

namespace layerpress::emulated_gpu {
namespace {

constexpr std::size_t kPage = 4096, kRounding = 512;  // of CUDA's allocator

std::size_t rounded(std::size_t bytes, std::size_t to) { return (std::max<std::size_t>(bytes, 1) + to - 1) / to * to; }

std::size_t chosen_capacity() {
  const char* text = std::getenv("LAYERPRESS_EMULATED_GPU_BYTES");
  return text == nullptr ? std::size_t{4} << 30 : std::strtoull(text, nullptr, 10);
}

}  // namespace

DeviceMemory& DeviceMemory::instance() {
  static auto* memory = new DeviceMemory();  // tensors may outlive everything else
  return *memory;
}

DeviceMemory::DeviceMemory() : capacity_(chosen_capacity()) {}

c10::DataPtr DeviceMemory::allocate(std::size_t bytes) {
  if (bytes == 0) return {nullptr, nullptr, &release, kDevice};
  const std::size_t counted = rounded(bytes, kRounding);
  const std::scoped_lock lock(mutex_);
  TORCH_CHECK_WITH(OutOfMemoryError, used_ + counted <= capacity_, "the emulated GPU has no ", bytes, " bytes left; ",
                   used_, " of ", capacity_, " are used");
  void* pages = ::mmap(nullptr, rounded(bytes, kPage), PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  TORCH_CHECK(pages != MAP_FAILED, "mmap: ", std::strerror(errno));
  allocations_[static_cast<char*>(pages)] = {bytes, 0};
  used_ += counted;
  peak_ = std::max(peak_, used_);
  return {pages, pages, &release, kDevice};
}

void DeviceMemory::release(void* pointer) {
  if (pointer == nullptr) return;
  DeviceMemory& memory = instance();
  const std::scoped_lock lock(memory.mutex_);
  const auto found = memory.allocations_.find(static_cast<char*>(pointer));
  memory.used_ -= rounded(found->second.bytes, kRounding);
  ::munmap(pointer, rounded(found->second.bytes, kPage));
  memory.allocations_.erase(found);
}

void* DeviceMemory::open(const void* pointer) {
  const auto* at = static_cast<const char*>(pointer);
  const std::scoped_lock lock(mutex_);
  auto found = allocations_.upper_bound(at);
  TORCH_CHECK(found != allocations_.begin(), "a pointer that is not the device's: ", pointer);
  --found;
  TORCH_CHECK(at <= found->first + found->second.bytes, "a pointer that is not the device's: ", pointer);
  void* pages = const_cast<char*>(found->first);
  if (found->second.users++ == 0) ::mprotect(pages, rounded(found->second.bytes, kPage), PROT_READ | PROT_WRITE);
  return pages;
}

void DeviceMemory::close(void* allocation) {
  const std::scoped_lock lock(mutex_);
  Allocation& found = allocations_.at(static_cast<char*>(allocation));
  if (--found.users == 0) ::mprotect(allocation, rounded(found.bytes, kPage), PROT_NONE);
}

c10::DeleterFnPtr DeviceMemory::raw_deleter() const { return &release; }

void DeviceMemory::copy_data(void* to, const void* from, std::size_t bytes) const {
  const HostAccess target(to), source(from);
  std::memcpy(to, from, bytes);
}

c10::CachingDeviceAllocator::DeviceStats DeviceMemory::getDeviceStats(c10::DeviceIndex) {
  const std::scoped_lock lock(mutex_);
  c10::CachingDeviceAllocator::DeviceStats stats;
  auto& all = stats.allocated_bytes[static_cast<std::size_t>(c10::CachingAllocator::StatType::AGGREGATE)];
  all.current = static_cast<std::int64_t>(used_);
  all.peak = static_cast<std::int64_t>(peak_);
  return stats;
}

void DeviceMemory::resetPeakStats(c10::DeviceIndex) {
  const std::scoped_lock lock(mutex_);
  peak_ = used_;
}

std::pair<std::size_t, std::size_t> DeviceMemory::getMemoryInfo(c10::DeviceIndex) {
  const std::scoped_lock lock(mutex_);
  return {capacity_ - used_, capacity_};
}

}  // namespace layerpress::emulated_gpu
