#include "layerpress/residency/host_memory.h"

#include <c10/core/CPUAllocator.h>
#include <c10/core/impl/alloc_cpu.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <list>
#include <map>
#include <mutex>
#include <new>

#include "layerpress/base/system/machine.h"

namespace layerpress::residency {
namespace {

constexpr std::size_t kPooled = 256u << 10;  // smaller blocks are left to the C library
constexpr std::size_t kHugePage = 2u << 20;
constexpr std::size_t kLargeBlock = 2 * kHugePage;  // asks for huge pages
constexpr std::uint64_t kKeptAtFirst = 64u << 20;
constexpr std::uint64_t kBlocksBetweenLooks = 8;  // measuring the rest of the process takes about 20 microseconds

/// Some pages of this process.
struct Pages {
  char* memory;
  std::size_t length;
};

void unmap(const Pages& pages) {
  if (pages.length > 0) ::munmap(pages.memory, pages.length);
}

/// New pages, or null; those of a large block begin at a huge page.
char* map_pages(std::size_t length) {
  const std::size_t slack = length >= kLargeBlock ? kHugePage : 0;
  void* const mapped = ::mmap(nullptr, length + slack, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapped == MAP_FAILED) return nullptr;
  char* const memory = static_cast<char*>(mapped);
  if (slack == 0) return memory;
  const std::size_t before = (kHugePage - reinterpret_cast<std::uintptr_t>(memory) % kHugePage) % kHugePage;
  unmap({memory, before});
  unmap({memory + before + length, slack - before});
  (void)::madvise(memory + before, length, MADV_HUGEPAGE);
  return memory + before;
}

class Pool {
 public:
  void* take(std::size_t size) {
    const std::size_t length = (size + 4095) / 4096 * 4096;
    {
      const std::lock_guard lock(mutex_);
      look_at_others();
      if (void* const kept = take_kept(length)) return kept;
      used_bytes_ += length;
      shrink();
    }
    char* const block = map_pages(length);
    const std::lock_guard lock(mutex_);
    if (block == nullptr) {
      used_bytes_ -= length;
      throw std::bad_alloc();
    }
    lengths_[block] = length;
    return block;
  }

  /// Returns false for a block that was not allocated here.
  bool give_back(void* block) {
    const std::lock_guard lock(mutex_);
    const auto found = lengths_.find(block);
    if (found == lengths_.end()) return false;
    used_bytes_ -= found->second;
    keep({static_cast<char*>(block), found->second}, by_age_.end());
    lengths_.erase(found);
    shrink();
    return true;
  }

  void limit(std::uint64_t bytes, bool beyond_use) {
    const std::lock_guard lock(mutex_);
    limit_ = bytes;
    beyond_use_ = beyond_use;
    grown_bytes_ = 0;
    other_bytes_ = 0;
    other_bytes_ = growth();
    shrink();
  }

  std::uint64_t used() const {
    const std::lock_guard lock(mutex_);
    return used_bytes_;
  }

 private:
  struct Kept;
  using ByLength = std::multimap<std::size_t, Kept>;
  using ByAge = std::list<ByLength::iterator>;
  struct Kept {
    Pages pages;
    ByAge::iterator place;
  };

  /// Measures the rest of the process now and then.
  void look_at_others() {
    if (++taken_ % kBlocksBetweenLooks != 0 || beyond_use_) return;
    grown_bytes_ = std::max(grown_bytes_, growth());  // pages that are not touched yet hide some of it
    shrink();
  }

  /// A kept block of about the length, or null. If there is no room for new pages, it is the end of a longer one.
  void* take_kept(std::size_t length) {
    const auto found = kept_.lower_bound(length);
    if (found != kept_.end() && found->first <= length + length / 8) {
      const Pages pages = found->second.pages;
      forget(found);
      return use(pages);
    }
    if (found == kept_.end() || used_bytes_ + kept_bytes_ + length <= most_bytes(length)) return nullptr;
    return cut(length);
  }

  /// Takes the end of the block that has been unused for longest. Large blocks begin at a huge page.
  void* cut(std::size_t length) {
    for (const ByLength::iterator block : by_age_) {
      const Pages pages = block->second.pages;
      if (pages.length < length) continue;
      const std::size_t step = length >= kLargeBlock ? kHugePage : 1;
      const std::size_t rest = (pages.length - length) / step * step;
      if (rest < kPooled) continue;
      const auto younger = std::next(block->second.place);
      forget(block);
      keep({pages.memory, rest}, younger);
      return use({pages.memory + rest, pages.length - rest});
    }
    return nullptr;
  }

  void* use(const Pages& pages) {
    used_bytes_ += pages.length;
    lengths_[pages.memory] = pages.length;
    return pages.memory;
  }

  /// The most bytes of used and kept blocks while so many more are used.
  std::uint64_t most_bytes(std::uint64_t more) const {
    return beyond_use_ ? used_bytes_ + more + limit_ : limit_ - std::min(limit_, grown_bytes_);
  }

  /// Returns as many kept pages to the kernel as exceed the limit, in whole huge pages, beginning with the blocks unused for longest.
  /// Blocks that a loop allocates and frees repeatedly stay.
  void shrink() {
    const std::uint64_t most = most_bytes(0);
    while (!kept_.empty() && used_bytes_ + kept_bytes_ > most) {
      const Pages oldest = by_age_.front()->second.pages;
      forget(by_age_.front());
      const std::uint64_t wanted = used_bytes_ + kept_bytes_ + oldest.length - most;
      const std::size_t gone = std::min(oldest.length, (wanted + kHugePage - 1) / kHugePage * kHugePage);
      unmap({oldest.memory, gone});
      if (gone < oldest.length) keep({oldest.memory + gone, oldest.length - gone}, by_age_.begin());
    }
  }

  /// Keeps a block, as old as its place says.
  void keep(const Pages& pages, ByAge::iterator before) {
    const auto place = by_age_.insert(before, kept_.end());
    *place = kept_.emplace(pages.length, Kept{pages, place});
    kept_bytes_ += pages.length;
  }

  /// Removes a block from the kept ones.
  void forget(ByLength::iterator block) {
    kept_bytes_ -= block->first;
    by_age_.erase(block->second.place);
    kept_.erase(block);
  }

  /// The growth of the process's other memory since the limit was set: small tensors, and code that matrix libraries
  /// compile for new shapes.
  std::uint64_t growth() const {
    const std::uint64_t known = used_bytes_ + kept_bytes_ + other_bytes_, now = anonymous_bytes();
    return now - std::min(now, known);
  }

  mutable std::mutex mutex_;
  ByLength kept_;
  ByAge by_age_;                          // kept blocks, the oldest first
  std::map<void*, std::size_t> lengths_;  // of blocks in use
  std::uint64_t used_bytes_ = 0, kept_bytes_ = 0;
  std::uint64_t limit_ = 0, other_bytes_ = 0, grown_bytes_ = 0, taken_ = 0;
  bool beyond_use_ = true;
};

/// ATen keeps pointers to allocators in tensors, and has one registry per process, so this allocator is a singleton.
class PoolAllocator final : public c10::Allocator {
 public:
  static PoolAllocator& instance() {
    static auto* allocator = new PoolAllocator();  // never destroyed: tensors in static storage may outlive it
    return *allocator;
  }

  c10::DataPtr allocate(std::size_t size) override {
    void* block = size < kPooled ? c10::alloc_cpu(size) : pool.take(size);
    return {block, block, &give_back, c10::Device(c10::DeviceType::CPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &give_back; }
  void copy_data(void* target, const void* source, std::size_t count) const override {
    default_copy_data(target, source, count);
  }

  Pool pool;

 private:
  static void give_back(void* block) {
    if (!instance().pool.give_back(block)) c10::free_cpu(block);
  }
};

}  // namespace

HostMemory::HostMemory() {
  PoolAllocator::instance().pool.limit(kKeptAtFirst, /*beyond_use=*/true);
  c10::SetCPUAllocator(&PoolAllocator::instance());
}

HostMemory::~HostMemory() {
  c10::SetCPUAllocator(c10::GetDefaultCPUAllocator());
  PoolAllocator::instance().pool.limit(0, /*beyond_use=*/false);
}

void HostMemory::limit(std::uint64_t bytes) { PoolAllocator::instance().pool.limit(bytes, /*beyond_use=*/false); }

std::uint64_t HostMemory::used_bytes() const { return PoolAllocator::instance().pool.used(); }

}  // namespace layerpress::residency
