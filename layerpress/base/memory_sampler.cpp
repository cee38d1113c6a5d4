#include "layerpress/base/memory_sampler.h"

#include <fcntl.h>

#include <algorithm>
#include <array>
#include <chrono>

#include "layerpress/base/descriptor.h"
#include "layerpress/base/machine.h"
#include "layerpress/base/process_status.h"

namespace layerpress {
namespace {

void raise(std::atomic<std::uint64_t>& peak, std::uint64_t sample) {
  std::uint64_t before = peak.load();
  while (before < sample && !peak.compare_exchange_weak(before, sample)) {
  }
}

}  // namespace

MemorySampler::MemorySampler(int interval_milliseconds)
    : interval_(std::max(1, interval_milliseconds)), thread_([this] { run(); }) {}

MemorySampler::~MemorySampler() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  wake_.notify_all();
  thread_.join();
}

std::uint64_t MemorySampler::peak_bytes() {
  raise(peak_, anonymous_bytes());
  return peak_;
}

void MemorySampler::run() {
  const Descriptor status(::open("/proc/self/status", O_RDONLY | O_CLOEXEC));
  std::array<char, 8192> text;
  std::unique_lock lock(mutex_);
  do {
    const ssize_t length = ::pread(status.value(), text.data(), text.size(), 0);
    if (length > 0) raise(peak_, anonymous_bytes_in({text.data(), static_cast<std::size_t>(length)}));
  } while (!wake_.wait_for(lock, std::chrono::milliseconds(interval_), [this] { return stop_; }));
}

}  // namespace layerpress
