#pragma once

#include <gtest/gtest.h>

#include <cstdint>

/// What this process holds of the heap, counted in malloc and free themselves: exact, whatever the machine, its load and
/// its number of threads are. A sampled resident size also holds what the allocator keeps of freed memory.
/// Only in test programs that link test_heap_meter. Memory mapped past malloc is not counted.
namespace layerpress::heap_meter {

/// Bytes of allocations of a page or more that are not freed.
std::uint64_t held_bytes();
/// The most bytes that held_bytes() was since restart_peak().
std::uint64_t peak_bytes();
void restart_peak();

}  // namespace layerpress::heap_meter

/// Skips a test where a sanitizer brings its own allocator.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define LAYERPRESS_SKIP_WITHOUT_HEAP_METER() GTEST_SKIP() << "the sanitizer's allocator does not count"
#else
#define LAYERPRESS_SKIP_WITHOUT_HEAP_METER() static_cast<void>(0)
#endif
