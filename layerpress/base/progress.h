#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <string>

namespace layerpress {

enum class LogLevel { kDebug, kInfo, kWarning, kError };

/// Receives the events of long work. The library never prints; the program decides what to do with events. All calls
/// come from the thread that runs the work.
class EventSink {
 public:
  virtual ~EventSink() = default;
  /// One line for the user.
  virtual void on_message(LogLevel, const std::string&) {}
  /// Overall progress: `done` of `total` steps of the model (subgraphs); `step` names the step that begins.
  virtual void on_step(std::uint64_t /*done*/, std::uint64_t /*total*/, const std::string& /*step*/) {}
  /// Progress inside the current step: `phase` (calibrate, compress, write, ...), tokens done of all tokens.
  virtual void on_phase(const std::string& /*phase*/, std::uint64_t /*done*/, std::uint64_t /*total*/) {}
};

/// Another party that may end the work, such as another process with a part of the same work. It is told of progress.
class Supervisor {
 public:
  virtual ~Supervisor() = default;
  /// Reports the current step.
  virtual void on_step(const std::string& step) = 0;
  /// Throws if the work has to end.
  virtual void check() = 0;
};

/// Passed to every long-running function: where to report progress, and whether a stop was requested. Owns nothing; all
/// pointers may be null.
struct RunControl {
  EventSink* events = nullptr;
  const std::atomic<bool>* stop_requested = nullptr;
  Supervisor* supervisor = nullptr;

  void message(LogLevel level, const std::string& text) const {
    if (events != nullptr) events->on_message(level, text);
  }
  void step(std::uint64_t done, std::uint64_t total, const std::string& name) const {
    if (events != nullptr) events->on_step(done, total, name);
    if (supervisor != nullptr) supervisor->on_step(name);
  }
  void phase(const std::string& name, std::uint64_t done, std::uint64_t total) const {
    if (events != nullptr) events->on_phase(name, done, total);
  }
  /// Throws InterruptedError if a stop was requested, or the exception of the supervisor.
  void check_stop() const;
};

/// Seconds since construction, on the monotonic clock.
class Timer {
 public:
  double seconds() const { return std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count(); }

 private:
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

}  // namespace layerpress
