#pragma once

#include <nanobind/nanobind.h>

#include <atomic>
#include <csignal>
#include <optional>

#include "layerpress/base/error.h"
#include "layerpress/base/progress.h"

namespace layerpress::bindings {

/// Passes events to a Python object with the methods message(level, text), step(done, total, name) and phase(name, done, total), from
/// the thread that works, which does not hold the interpreter's lock.
class PythonEvents : public EventSink {
 public:
  explicit PythonEvents(nanobind::handle events) : events_(events) {}
  void on_message(LogLevel level, const std::string& text) override;
  void on_step(std::uint64_t done, std::uint64_t total, const std::string& step) override;
  void on_phase(const std::string& phase, std::uint64_t done, std::uint64_t total) override;

 private:
  nanobind::handle events_;
};

/// Turns SIGINT into a request to stop, for the lifetime of the object; Python's own handler would wait for the end of the work. Only
/// where Python handles signals: in its main thread. An interruption that came too late to stop the work is passed on to Python.
class Interruption {
 public:
  explicit Interruption(bool in_main_thread);
  ~Interruption();
  Interruption(const Interruption&) = delete;
  Interruption& operator=(const Interruption&) = delete;

  const std::atomic<bool>* requested() const;
  /// The work has ended because of it.
  void obeyed() { obeyed_ = true; }

 private:
  std::optional<struct sigaction> before_;  // if it is responsible
  bool obeyed_ = false;
};

/// The process's number of CPU threads is afterwards what it was.
class ThreadCount {
 public:
  ThreadCount();
  ~ThreadCount();
  ThreadCount(const ThreadCount&) = delete;
  ThreadCount& operator=(const ThreadCount&) = delete;

 private:
  int count_;
};

/// Runs `work(control)` without the interpreter's lock.
template <typename Work>
auto run(nanobind::handle events, bool in_main_thread, Work&& work) {
  PythonEvents sink(events);
  Interruption interruption(in_main_thread);
  const ThreadCount threads;
  const RunControl control{&sink, interruption.requested()};
  try {
    const nanobind::gil_scoped_release released;
    return work(control);
  } catch (const InterruptedError&) {
    interruption.obeyed();
    throw;
  }
}

}  // namespace layerpress::bindings
