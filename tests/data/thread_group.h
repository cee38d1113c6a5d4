#pragma once

#include <condition_variable>
#include <exception>
#include <functional>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "layerpress/data/shared_loading.h"
#include "tests/data/loaded_samples.h"

namespace layerpress::test {

/// Loaders that are threads of this process. One that throws ends the others, whose all_gather throws.
class ThreadGroup {
 public:
  struct Outcome {
    data::CalibrationSet set;
    std::string error;       ///< empty when there was none
    bool abandoned = false;  ///< ended by another's error
  };

  explicit ThreadGroup(int size) : outcomes_(static_cast<std::size_t>(size)), sent_(outcomes_.size()) {}

  /// Runs `load` on every rank at once.
  std::vector<Outcome> run(const std::function<data::CalibrationSet(data::LoaderGroup&)>& load) {
    std::vector<std::thread> threads;
    for (std::size_t rank = 0; rank < outcomes_.size(); ++rank)
      threads.emplace_back([this, rank, &load] { run_rank(static_cast<int>(rank), load); });
    for (std::thread& thread : threads) thread.join();
    return outcomes_;
  }

  /// How often all of them exchanged numbers.
  int gathers() const { return gathers_; }

 private:
  using Numbers = std::vector<std::int64_t>;
  struct Abandoned : std::runtime_error {
    using std::runtime_error::runtime_error;
  };

  struct Member : data::LoaderGroup {
    Member(ThreadGroup& group, int rank) : group_(group), rank_(rank) {}
    int rank() const override { return rank_; }
    int size() const override { return static_cast<int>(group_.outcomes_.size()); }
    std::vector<Numbers> all_gather(const Numbers& own) override { return group_.gather(rank_, own); }
    ThreadGroup& group_;
    int rank_;
  };

  void run_rank(int rank, const std::function<data::CalibrationSet(data::LoaderGroup&)>& load) {
    Outcome& outcome = outcomes_[static_cast<std::size_t>(rank)];
    Member member(*this, rank);
    try {
      outcome.set = load(member);
    } catch (const std::exception& fault) {
      const std::lock_guard lock(mutex_);
      outcome.error = fault.what();
      outcome.abandoned = dynamic_cast<const Abandoned*>(&fault) != nullptr;
      failed_ = true;
      changed_.notify_all();
    }
  }

  std::vector<Numbers> gather(int rank, const Numbers& own) {
    std::unique_lock lock(mutex_);
    const int round = gathers_;
    sent_[static_cast<std::size_t>(rank)] = own;
    if (++arrived_ == sent_.size()) {
      arrived_ = 0;
      ++gathers_;
      received_ = sent_;  // nobody comes to the next round before all have left this one with their copy
      changed_.notify_all();
    }
    changed_.wait(lock, [&] { return gathers_ != round || failed_; });
    if (gathers_ == round) throw Abandoned("another rank failed");
    return received_;
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Outcome> outcomes_;
  std::vector<Numbers> sent_;
  std::vector<Numbers> received_;
  std::size_t arrived_ = 0;
  int gathers_ = 0;
  bool failed_ = false;
};

}  // namespace layerpress::test
