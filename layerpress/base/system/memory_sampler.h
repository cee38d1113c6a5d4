#pragma once

#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <thread>
#include <vector>

#include "layerpress/base/progress.h"

namespace layerpress {

/// Maxima of memory in intervals of equal length since the start.
struct MemoryHistory {
  double interval_seconds = 0.05;
  std::vector<std::uint64_t> bytes;

  /// Takes a sample into account. Intervals are doubled before there are more than 512.
  void add(double seconds, std::uint64_t sample);
};

/// Samples this process's memory on its own thread every few milliseconds. Counts memory that the kernel cannot reclaim
/// (RssAnon + RssShmem), so not mapped file pages.
class MemorySampler {
 public:
  explicit MemorySampler(int interval_milliseconds = 10);
  ~MemorySampler();
  MemorySampler(const MemorySampler&) = delete;
  MemorySampler& operator=(const MemorySampler&) = delete;
  /// The largest sample so far, including one taken now.
  std::uint64_t peak_bytes();
  MemoryHistory history();

 private:
  void run();
  int interval_;
  std::mutex mutex_;
  std::condition_variable wake_;
  Timer timer_;
  std::uint64_t peak_ = 0;  // guarded by mutex_, as the two below are
  MemoryHistory history_;
  bool stop_ = false;
  std::thread thread_;  // last member: starts after the others are initialized
};

}  // namespace layerpress
