#include "layerpress/bindings/running.h"

#include <ATen/Parallel.h>
#include <nanobind/stl/string.h>

namespace layerpress::bindings {
namespace {

namespace nb = nanobind;

/// Of the interruption that is there; a signal handler has no other way to find it.
std::atomic<bool> stop_requested{false};
std::atomic<bool> in_use{false};

extern "C" void request_stop(int) { stop_requested = true; }

constexpr const char* kLevels[] = {"debug", "info", "warning", "error"};

}  // namespace

void PythonEvents::on_message(LogLevel level, const std::string& text) {
  const nb::gil_scoped_acquire locked;
  events_.attr("message")(kLevels[static_cast<int>(level)], text);
}

void PythonEvents::on_step(std::uint64_t done, std::uint64_t total, const std::string& step) {
  const nb::gil_scoped_acquire locked;
  events_.attr("step")(done, total, step);
}

void PythonEvents::on_phase(const std::string& phase, std::uint64_t done, std::uint64_t total) {
  const nb::gil_scoped_acquire locked;
  events_.attr("phase")(phase, done, total);
}

Interruption::Interruption(bool in_main_thread) {
  if (!in_main_thread || in_use.exchange(true)) return;
  stop_requested = false;
  struct sigaction action {};
  action.sa_handler = request_stop;
  sigaction(SIGINT, &action, &before_.emplace());
  // Started in the background, for example.
  if (before_->sa_handler == SIG_IGN) sigaction(SIGINT, &*before_, nullptr);
}

Interruption::~Interruption() {
  if (!before_) return;
  sigaction(SIGINT, &*before_, nullptr);
  if (stop_requested.exchange(false) && !obeyed_) PyErr_SetInterrupt();
  in_use = false;
}

const std::atomic<bool>* Interruption::requested() const { return before_ ? &stop_requested : nullptr; }

ThreadCount::ThreadCount() : count_(at::get_num_threads()) {}

ThreadCount::~ThreadCount() {
  if (at::get_num_threads() != count_) at::set_num_threads(count_);
}

}  // namespace layerpress::bindings
