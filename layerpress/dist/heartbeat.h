#pragma once

#include <pthread.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <exception>
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

/// The reason why the ranks end, as all of them learn it.
struct Failure {
  std::string text;     ///< names the rank and the cause
  std::string machine;  ///< of the reporting rank
  int reporter = 0;     ///< the reporting rank; -1: every rank noticed it independently
  FailureKind kind = FailureKind::kError;
};

/// Reports that this rank is alive, watches the other ranks, and passes the first failure on to all. It does so on its
/// own thread, the only one that talks to the store while ranks work. Each rank watches the next rank and all ranks on
/// its machine.
///
/// A rank is alive while the thread that created this object uses the processor, reports steps, or waits for other
/// ranks (see Waiting). A rank that does none of these for the time-out has failed. These are failures, too: a process
/// that ends without leaving the group, a store that does not answer, and a group whose ranks all wait for each other.
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

  /// While it exists, this rank waits for other ranks in operation number `operation` and does not count as idle.
  class Waiting {
   public:
    Waiting(Heartbeat& heartbeat, std::uint64_t operation);
    ~Waiting();
    Waiting(const Waiting&) = delete;
    Waiting& operator=(const Waiting&) = delete;

   private:
    Heartbeat& heartbeat_;
  };

  /// Whether the ranks have to end. Examines only this process, so it never blocks.
  bool has_failed();
  std::optional<Failure> failure() const;
  /// The same after a new check of all ranks, which may take up to a second.
  std::optional<Failure> look();
  /// Called when a connection to another rank is lost. Waits some seconds until the lost rank is known, and fails. If
  /// no rank is missing, reports `otherwise` about this rank.
  void find_lost(const std::string& otherwise = "lost its connection to another rank");
  /// Tells all ranks, unless there was an earlier failure. Afterwards failure() returns the first one.
  void fail(const std::string& text, FailureKind kind);
  /// Whether this rank reports the failure for its machine.
  bool reports() const { return reports_.load(); }

  /// Announces that this rank ends normally or, after a failure, that it knows of the failure. Then ends the thread.
  /// Returns false if the thread is stuck in the store: then the object must not be destroyed.
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
  Clock::time_point asked_at_;  // used by the working thread

  mutable std::mutex mutex_;  // guards the members below
  std::condition_variable changed_;
  std::string step_;
  std::optional<Failure> failure_, to_publish_;
  std::uint64_t asked_ = 0, answered_ = 0;  // numbers of requested and finished checks
  bool suspects_ = false, stop_ = false, stopped_ = false;

  // Used by the heartbeat thread:
  std::uint64_t sequence_ = 0, beats_ = 0, last_progress_ = 0;
  double last_processor_seconds_ = 0;
  Said next_said_;
  Clock::time_point next_changed_, last_look_, suspected_at_;
  std::map<int, Said> suspects_said_, waiting_said_;
  Clock::time_point all_wait_since_;
  std::atomic<bool> was_stopped_{false};  // this process was stopped long enough for others to notice
  std::thread thread_;                    // last member: starts after the others are initialized
};

/// The text of a library's exception, without its stack trace.
std::string cause_of(const std::exception& error);

}  // namespace layerpress::dist
