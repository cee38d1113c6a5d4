#pragma once

#include <pthread.h>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "layerpress/dist/peers.h"

namespace layerpress::dist {

/// Why the ranks end.
struct Failure {
  std::string text;        ///< names the rank and the cause
  std::string machine;     ///< of the rank that says it
  int reporter = 0;        ///< that rank
  bool on_request = false;  ///< somebody asked for the end
};

/// Tells the other ranks that this one lives, watches that they do, and carries the first failure to all: a thread with a
/// store connection of its own. Each rank watches the next one, and all that run on its machine.
///
/// A rank lives while the thread that made this object uses the processor, waits for others (see Waiting) or reports
/// steps; one that does none of these for the time-out has failed. So has one whose process ended without leave().
class Heartbeat {
 public:
  Heartbeat(c10::intrusive_ptr<c10d::Store> store, std::vector<Peer> peers, int rank, std::chrono::milliseconds timeout);
  /// Ends the thread; other ranks notice nothing only after leave().
  ~Heartbeat();
  Heartbeat(const Heartbeat&) = delete;
  Heartbeat& operator=(const Heartbeat&) = delete;

  void on_step(const std::string& step);
  void on_progress() { progress_.fetch_add(1, std::memory_order_relaxed); }

  /// While it exists this rank waits for others, which is no idleness of its own.
  class Waiting {
   public:
    explicit Waiting(Heartbeat& heartbeat) : heartbeat_(heartbeat) { heartbeat_.waiting_ = true; }
    ~Waiting() { heartbeat_.waiting_ = false; }
    Waiting(const Waiting&) = delete;
    Waiting& operator=(const Waiting&) = delete;

   private:
    Heartbeat& heartbeat_;
  };

  bool has_failed() const { return failed_.load(std::memory_order_acquire); }
  /// Looks at once rather than at the next beat.
  std::optional<Failure> look();
  /// Tells all ranks, unless another failure was first; afterwards look() gives the first.
  void fail(const std::string& text, bool on_request);
  /// This rank ends as it should.
  void leave();
  /// Whether this rank is the one of its machine that says what failed.
  bool reports(const Failure& failure) const;

 private:
  using Clock = std::chrono::steady_clock;
  void run();
  bool beat();
  void publish();
  void find_failure();
  void find_ended();
  void watch_next();
  void set_failure(Failure failure);
  std::string step_of(int rank);
  bool uses_processor();

  c10::intrusive_ptr<c10d::Store> store_;
  std::vector<Peer> peers_;
  int rank_;
  std::chrono::milliseconds timeout_, interval_;
  LocalPeers local_;
  clockid_t worker_clock_{};
  std::atomic<std::uint64_t> progress_{0};
  std::atomic<bool> waiting_{false}, failed_{false};
  mutable std::mutex mutex_;  // over what follows
  std::string step_;
  std::optional<Failure> failure_;
  std::mutex store_mutex_;  // one look at a time

  // Of the thread:
  std::uint64_t beats_ = 0, last_progress_ = 0;
  double last_processor_seconds_ = 0;
  std::string next_said_;
  Clock::time_point next_changed_, last_answer_, last_look_;
  std::condition_variable changed_;
  std::mutex stop_mutex_;
  bool stop_ = false;
  std::thread thread_;  // last: starts when everything above is there
};

/// The text of an exception of the libraries, without their stack traces.
std::string cause_of(const std::exception& error);

}  // namespace layerpress::dist
