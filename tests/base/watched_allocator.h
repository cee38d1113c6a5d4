#pragma once

#include <gtest/gtest.h>

/// Skips a test that measures memory, where a sanitizer's allocator keeps what is freed.
#if defined(__SANITIZE_ADDRESS__)
#define LAYERPRESS_SKIP_WITH_WATCHED_ALLOCATOR() GTEST_SKIP() << "the sanitizer's allocator keeps what is freed"
#else
#define LAYERPRESS_SKIP_WITH_WATCHED_ALLOCATOR() static_cast<void>(0)
#endif
