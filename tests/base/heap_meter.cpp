#include "tests/base/heap_meter.h"

#include <malloc.h>

#include <atomic>
#include <cerrno>

namespace layerpress::heap_meter {
namespace {

std::atomic<std::int64_t> held = 0, most_held = 0;

constexpr std::size_t kCounted = 4096;

[[maybe_unused]] void* taken(void* block) {
  const std::size_t bytes = block == nullptr ? 0 : malloc_usable_size(block);
  if (bytes < kCounted) return block;
  const std::int64_t now = held += static_cast<std::int64_t>(bytes);
  std::int64_t most = most_held;
  while (now > most && !most_held.compare_exchange_weak(most, now)) {
  }
  return block;
}

[[maybe_unused]] void given_back(void* block) {
  const std::size_t bytes = block == nullptr ? 0 : malloc_usable_size(block);
  if (bytes >= kCounted) held -= static_cast<std::int64_t>(bytes);
}

}  // namespace

std::uint64_t held_bytes() { return static_cast<std::uint64_t>(held.load()); }
std::uint64_t peak_bytes() { return static_cast<std::uint64_t>(most_held.load()); }
void restart_peak() { most_held = held.load(); }

}  // namespace layerpress::heap_meter

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
// The C library lets a program define these (its manual, "Replacing malloc"); its own stay under names of their own.
// NOLINTBEGIN(bugprone-reserved-identifier,readability-identifier-naming)
extern "C" {

void* __libc_malloc(std::size_t);
void* __libc_calloc(std::size_t, std::size_t);
void* __libc_realloc(void*, std::size_t);
void* __libc_memalign(std::size_t, std::size_t);
void __libc_free(void*);

void* malloc(std::size_t bytes) { return layerpress::heap_meter::taken(__libc_malloc(bytes)); }
void* calloc(std::size_t count, std::size_t bytes) {
  return layerpress::heap_meter::taken(__libc_calloc(count, bytes));
}
void* memalign(std::size_t alignment, std::size_t bytes) {
  return layerpress::heap_meter::taken(__libc_memalign(alignment, bytes));
}
void* aligned_alloc(std::size_t alignment, std::size_t bytes) { return memalign(alignment, bytes); }

int posix_memalign(void** block, std::size_t alignment, std::size_t bytes) {
  void* found = memalign(alignment, bytes);
  if (found == nullptr) return ENOMEM;
  *block = found;
  return 0;
}

void* realloc(void* block, std::size_t bytes) {
  layerpress::heap_meter::given_back(block);
  void* found = __libc_realloc(block, bytes);
  // Where it fails, the old block stays.
  layerpress::heap_meter::taken(found == nullptr && bytes > 0 ? block : found);
  return found;
}

void free(void* block) {
  layerpress::heap_meter::given_back(block);
  __libc_free(block);
}

}  // extern "C"
// NOLINTEND(bugprone-reserved-identifier,readability-identifier-naming)
#endif
