#include "layerpress/base/system/memory_sampler.h"

#include <fcntl.h>

#include <algorithm>
#include <array>
#include <chrono>

#include "layerpress/base/files/descriptor.h"
#include "layerpress/base/system/machine.h"
#include "layerpress/base/system/process_status.h"

namespace layerpress {

void MemoryHistory::add(double seconds, std::uint64_t sample) {
  constexpr std::size_t kMost = 512;
  auto place = static_cast<std::size_t>(seconds / interval_seconds);
  while (place >= kMost) {
    for (std::size_t i = 0; 2 * i < bytes.size(); ++i)
      bytes[i] = std::max(bytes[2 * i], bytes[std::min(2 * i + 1, bytes.size() - 1)]);
    bytes.resize((bytes.size() + 1) / 2);
    interval_seconds *= 2;
    place /= 2;
  }
  if (bytes.size() <= place) bytes.resize(place + 1, sample);
  bytes[place] = std::max(bytes[place], sample);
}

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
  const std::uint64_t sample = anonymous_bytes();
  const std::lock_guard lock(mutex_);
  return peak_ = std::max(peak_, sample);
}

MemoryHistory MemorySampler::history() {
  const std::lock_guard lock(mutex_);
  return history_;
}

void MemorySampler::run() {
  const Descriptor status(::open("/proc/self/status", O_RDONLY | O_CLOEXEC));
  std::array<char, 8192> text;
  std::unique_lock lock(mutex_);
  do {
    const ssize_t length = ::pread(status.value(), text.data(), text.size(), 0);
    if (length > 0) {
      const std::uint64_t sample = anonymous_bytes_in({text.data(), static_cast<std::size_t>(length)});
      peak_ = std::max(peak_, sample);
      history_.add(timer_.seconds(), sample);
    }
  } while (!wake_.wait_for(lock, std::chrono::milliseconds(interval_), [this] { return stop_; }));
}

}  // namespace layerpress
