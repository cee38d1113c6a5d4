#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <thread>

namespace layerpress {

/// Measures this process's memory in a thread of its own, every few milliseconds: what the kernel cannot take away
/// (RssAnon + RssShmem), unlike mapped file pages.
class MemorySampler {
 public:
  explicit MemorySampler(int interval_milliseconds = 10);
  ~MemorySampler();
  MemorySampler(const MemorySampler&) = delete;
  MemorySampler& operator=(const MemorySampler&) = delete;
  /// The largest sample so far, one taken now included.
  std::uint64_t peak_bytes();

 private:
  void run();
  int interval_;
  std::atomic<std::uint64_t> peak_{0};
  std::mutex mutex_;
  std::condition_variable wake_;
  bool stop_ = false;
  std::thread thread_;  // last: starts when everything above is there
};

}  // namespace layerpress
