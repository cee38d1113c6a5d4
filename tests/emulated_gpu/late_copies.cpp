#include "tests/emulated_gpu/late_copies.h"

#include <c10/core/impl/VirtualGuardImpl.h>

#include <vector>

#include "tests/emulated_gpu/device_memory.h"

namespace layerpress::emulated_gpu {

LateCopies& LateCopies::instance() {
  static auto* copies = new LateCopies();
  return *copies;
}

void LateCopies::queue(c10::StreamId stream, std::function<void()> copy) {
  const std::scoped_lock lock(mutex_);
  queues_[stream].copies.push_back(std::move(copy));
}

LateCopies::Point LateCopies::reached(c10::StreamId stream) {
  const std::scoped_lock lock(mutex_);
  const Queue& queue = queues_[stream];
  return {stream, queue.first + queue.copies.size()};
}

void LateCopies::finish(const Point& point) {
  const std::scoped_lock lock(mutex_);
  Queue& queue = queues_[point.stream];
  while (queue.first < point.place && !queue.copies.empty()) {
    const std::function<void()> copy = std::move(queue.copies.front());
    queue.copies.pop_front();
    ++queue.first;
    copy();
  }
}

void LateCopies::finish_all() {
  const std::scoped_lock lock(mutex_);
  std::vector<c10::StreamId> streams;
  for (const auto& [stream, queue] : queues_) streams.push_back(stream);
  for (const c10::StreamId stream : streams) finish(reached(stream));
}

void LateCopies::wait(c10::StreamId stream, const Point& point) {
  if (stream != point.stream) queue(stream, [this, point] { finish(point); });
}

void finish_earlier() { LateCopies::instance().finish(LateCopies::instance().reached(own_stream())); }

c10::StreamId own_stream() { return c10::impl::VirtualGuardImpl(kDevice.type()).getStream(kDevice).id(); }

}  // namespace layerpress::emulated_gpu
