#pragma once

#include <pthread.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <vector>

#include "layerpress/dist/failure.h"
#include "layerpress/dist/peers.h"

namespace layerpress::dist {

/// Why the ranks end, as all of them learn it.
struct Failure {
  std::string text;     ///< names the rank and the cause
  std::string machine;  ///< of the rank that says it
  int reporter = 0;     ///< that rank; -1: every rank found it out for itself
  FailureKind kind = FailureKind::kError;
};

/// Tells the other ranks that this one lives, watches that they do, and carries the first failure to all: a thread, the only
/// one that talks to the store while ranks work. Each rank watches the next one, and all that run on its machine.
///
/// A rank lives while the thread that made this object uses the processor, reports steps, or waits for others (see Waiting); one
/// that does none of these for the time-out has failed. So has one whose process ended without leave(), a store that does
/// not answer, and a group of which all wait for each other.
class Heartbeat {
 public:
  Heartbeat(c10::intrusive_ptr<c10d::Store> store, std::vector<Peer> peers, int rank, std::chrono::milliseconds timeout,
            std::string store_name);
  /// REQUIRES: stop() has returned true.
  ~Heartbeat();
  Heartbeat(const Heartbeat&) = delete;
  Heartbeat& operator=(const Heartbeat&) = delete;

  void on_step(const std::string& step);
  void on_progress() { progress_.fetch_add(1, std::memory_order_relaxed); }

  /// While it exists this rank waits for others in operation number `operation`, which is no idleness of its own.
  class Waiting {
   public:
    Waiting(Heartbeat& heartbeat, std::uint64_t operation);
    ~Waiting();
    Waiting(const Waiting&) = delete;
    Waiting& operator=(const Waiting&) = delete;

   private:
    Heartbeat& heartbeat_;
  };

  /// Whether the ranks end. Looks at nothing but this process, so it never waits.
  bool has_failed();
  std::optional<Failure> failure() const;
  /// The same after a fresh look at who is still there, for which it waits up to a second.
  std::optional<Failure> look();
  /// A connection to another rank is lost: waits some seconds until it is clear to whom, and fails; `otherwise` is what this
  /// rank says of itself when nobody is missing.
  void find_lost(const std::string& otherwise = "lost its connection to another rank");
  /// Tells all ranks, unless another failure was first; afterwards failure() gives the first.
  void fail(const std::string& text, FailureKind kind);
  /// Whether this rank is the one of its machine that says what failed.
  bool reports() const { return reports_.load(); }

  /// Says that this rank ends as it should, or, after a failure, that it knows; then ends the thread. False when the thread is
  /// stuck in the store: the object has to stay.
  bool stop();

 private:
  using Clock = std::chrono::steady_clock;
  struct Said {
    std::uint64_t sequence = 0, beats = 0, operation = 0;
    bool waits = false;
    std::string step;
  };
  void run();
  void beat();
  void publish();
  void publish_failure();
  void find_failure();
  void find_ended();
  void watch_next();
  void find_deadlock();
  void compare_all();
  bool was_paused();
  bool uses_processor();
  static Said said_in(const std::string& beat);
  std::map<int, Said> said_by_all();
  std::string step_of(int rank);
  bool has_left(int rank);
  const Peer& peer(int rank) const { return peers_[static_cast<std::size_t>(rank)]; }
  void set_failure(Failure failure, bool reports);
  void fail_from_thread(const std::string& text);
  void fail_alone(const std::string& text);
  void ask(std::unique_lock<std::mutex>& lock, std::chrono::milliseconds patience);

  c10::intrusive_ptr<c10d::Store> store_;
  std::vector<Peer> peers_;
  int rank_;
  std::chrono::milliseconds timeout_, interval_;
  std::string store_name_;
  LocalPeers local_;
  clockid_t worker_clock_{};
  std::atomic<std::uint64_t> progress_{0}, operation_{0};
  std::atomic<bool> waiting_{false}, failed_{false}, reports_{false};
  std::atomic<Clock::duration::rep> last_answer_, waiting_since_{0};
  Clock::time_point asked_at_;  // by the working thread

  mutable std::mutex mutex_;  // over what follows
  std::condition_variable changed_;
  std::string step_;
  std::optional<Failure> failure_, to_publish_;
  std::uint64_t asked_ = 0, answered_ = 0;  // for a look, and given
  bool suspects_ = false, stop_ = false, stopped_ = false;

  // Of the thread:
  std::uint64_t sequence_ = 0, beats_ = 0, last_progress_ = 0;
  double last_processor_seconds_ = 0;
  Said next_said_;
  Clock::time_point next_changed_, last_look_, suspected_at_;
  std::map<int, Said> suspects_said_, waiting_said_;
  Clock::time_point all_wait_since_;
  std::atomic<bool> was_stopped_{false};  // this process, for so long that others have noticed
  std::thread thread_;                    // last: starts when everything above is there
};

/// The text of an exception of the libraries, without their stack traces.
std::string cause_of(const std::exception& error);

}  // namespace layerpress::dist
