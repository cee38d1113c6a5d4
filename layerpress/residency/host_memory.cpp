#include "layerpress/residency/host_memory.h"

#include <c10/core/CPUAllocator.h>
#include <c10/core/impl/alloc_cpu.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <iterator>
#include <list>
#include <map>
#include <mutex>
#include <new>

#include "layerpress/base/system/machine.h"

namespace layerpress::residency {
namespace {

constexpr std::size_t kPooled = 256u << 10;   // smaller blocks are left to the C library
constexpr std::size_t kHugePages = 4u << 20;  // larger ones ask for huge pages
constexpr std::uint64_t kKeptAtFirst = 64u << 20;
constexpr std::uint64_t kBlocksBetweenLooks = 32;  // measuring the rest of the process takes about 20 microseconds

class Pool {
 public:
  void* take(std::size_t size) {
    const std::size_t length = (size + 4095) / 4096 * 4096;
    {
      const std::lock_guard lock(mutex_);
      if (++taken_ % kBlocksBetweenLooks == 0 && !beyond_use_) {
        grown_bytes_ = growth();
        shrink();
      }
      // A slightly larger block is suitable; a much larger one would hold memory that others need.
      const auto found = kept_.lower_bound(length);
      if (found != kept_.end() && found->first <= length + length / 8) {
        void* block = found->second.memory;
        used_bytes_ += found->first;
        lengths_[block] = found->first;
        forget(found);
        return block;
      }
      used_bytes_ += length;
      shrink();
    }
    void* block = ::mmap(nullptr, length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (block == MAP_FAILED) {
      const std::lock_guard lock(mutex_);
      used_bytes_ -= length;
      throw std::bad_alloc();
    }
    if (length >= kHugePages) (void)::madvise(block, length, MADV_HUGEPAGE);
    const std::lock_guard lock(mutex_);
    lengths_[block] = length;
    return block;
  }

  /// Returns false for a block that was not allocated here.
  bool give_back(void* block) {
    const std::lock_guard lock(mutex_);
    const auto found = lengths_.find(block);
    if (found == lengths_.end()) return false;
    used_bytes_ -= found->second;
    kept_bytes_ += found->second;
    by_age_.push_back(kept_.emplace(found->second, Kept{block, {}}));
    by_age_.back()->second.place = std::prev(by_age_.end());
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
    void* memory;
    ByAge::iterator place;
  };

  /// Returns kept blocks to the kernel until the limit holds, beginning with those unused for longest. Blocks that a
  /// loop allocates and frees repeatedly stay.
  void shrink() {
    const std::uint64_t most = beyond_use_ ? used_bytes_ + limit_ : limit_ - std::min(limit_, grown_bytes_);
    while (!kept_.empty() && used_bytes_ + kept_bytes_ > most) {
      const auto oldest = by_age_.front();
      ::munmap(oldest->second.memory, oldest->first);
      forget(oldest);
    }
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
