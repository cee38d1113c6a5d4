#include "layerpress/base/files/mapped_regions.h"

#include <array>
#include <atomic>
#include <cstring>

#include "layerpress/base/file.h"

namespace layerpress {
namespace {

constexpr std::uint32_t kPlaces = 4096;
constexpr std::size_t kPathSize = 512;

/// `version` modulo 4 is the entry's state. It grows with every change, so a reader notices a concurrent change.
enum : std::uint32_t { kFree = 0, kFilling = 1, kUsed = 2, kStates = 4 };

struct Region {
  std::atomic<std::uint32_t> version{kFree};
  std::atomic<std::uintptr_t> begin{0};
  std::atomic<std::uintptr_t> end{0};
};

// A signal handler can only use globals and may neither lock nor allocate.
constinit std::array<Region, kPlaces> regions;
constinit char paths[kPlaces][kPathSize] = {};
constinit std::atomic<std::uint32_t> next_place{0};

static_assert(std::atomic<std::uintptr_t>::is_always_lock_free);

/// If a path does not fit, its end is kept, because it says more than its beginning.
void copy_path(char* place, const std::string& path) {
  const std::size_t skipped = path.size() < kPathSize ? 0 : path.size() - (kPathSize - 1);
  std::memcpy(place, path.c_str() + skipped, path.size() - skipped + 1);
}

}  // namespace

int note_mapped_region(const void* begin, std::uint64_t length, const std::string& path) noexcept {
  if (length == 0) return -1;
  for (std::uint32_t tried = 0; tried < kPlaces; ++tried) {
    const std::uint32_t place = next_place.fetch_add(1, std::memory_order_relaxed) % kPlaces;
    Region& region = regions[place];
    std::uint32_t version = region.version.load(std::memory_order_relaxed);
    if (version % kStates != kFree ||
        !region.version.compare_exchange_strong(version, version + kFilling, std::memory_order_acq_rel))
      continue;
    copy_path(paths[place], path);
    const auto address = reinterpret_cast<std::uintptr_t>(begin);
    region.begin.store(address, std::memory_order_relaxed);
    region.end.store(address + length, std::memory_order_relaxed);
    region.version.store(version + kUsed, std::memory_order_release);
    return static_cast<int>(place);
  }
  return -1;
}

void forget_mapped_region(int place) noexcept {
  if (place >= 0) regions[static_cast<std::size_t>(place)].version.fetch_add(kStates - kUsed);
}

const char* mapped_file_at(const void* address) noexcept {
  const auto wanted = reinterpret_cast<std::uintptr_t>(address);
  for (std::uint32_t place = 0; place < kPlaces; ++place) {
    const Region& region = regions[place];
    const std::uint32_t version = region.version.load(std::memory_order_acquire);
    if (version % kStates != kUsed) continue;
    const bool inside =
        region.begin.load(std::memory_order_relaxed) <= wanted && wanted < region.end.load(std::memory_order_relaxed);
    std::atomic_thread_fence(std::memory_order_acquire);
    if (inside && region.version.load(std::memory_order_relaxed) == version) return paths[place];
  }
  return nullptr;
}

}  // namespace layerpress
