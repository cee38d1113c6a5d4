#pragma once

#include <c10/core/Stream.h>

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <mutex>

namespace layerpress::emulated_gpu {

/// Asynchronous copies, each of which happens as late as a GPU may do it: when somebody waits for an event behind it, or when its
/// stream does something else. What forgets to wait reads the bytes of before.
class LateCopies {
 public:
  /// A place in the order of a stream's work.
  struct Point {
    c10::StreamId stream = 0;
    std::uint64_t place = 0;
  };

  static LateCopies& instance();

  void queue(c10::StreamId stream, std::function<void()> copy);
  /// The end of what a stream was given so far.
  Point reached(c10::StreamId stream);
  /// Finishes the work in front of a point.
  void finish(const Point& point);
  void finish_all();
  /// Later work of the stream comes behind the point.
  void wait(c10::StreamId stream, const Point& point);

 private:
  struct Queue {
    std::uint64_t first = 0;  ///< the place of the first one
    std::deque<std::function<void()>> copies;
  };

  std::recursive_mutex mutex_;
  std::map<c10::StreamId, Queue> queues_;
};

/// What the calling thread's stream was given before comes first.
void finish_earlier();
/// The calling thread's stream.
c10::StreamId own_stream();

}  // namespace layerpress::emulated_gpu
