#include "layerpress/residency/weight_prefetch.h"

#include <utility>

namespace layerpress::residency {

WeightPrefetch::WeightPrefetch(const WeightSource& source) : source_(source), thread_([this] { run(); }) {}

WeightPrefetch::~WeightPrefetch() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void WeightPrefetch::start(std::vector<std::string> names) {
  {
    const std::lock_guard lock(mutex_);
    names_ = std::move(names);
    busy_ = true;
  }
  changed_.notify_all();
}

void WeightPrefetch::wait() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return !busy_; });
  if (failure_) std::rethrow_exception(std::exchange(failure_, nullptr));
}

void WeightPrefetch::run() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [&] { return busy_ || stop_; });
    if (stop_) return;
    const std::vector<std::string> names = std::move(names_);
    for (std::size_t i = 0; i < names.size() && !stop_; ++i) {
      lock.unlock();
      std::exception_ptr failure;
      try {
        source_.fetch(names[i]);
      } catch (...) {
        failure = std::current_exception();
      }
      lock.lock();
      if (failure) {
        failure_ = failure;
        break;
      }
    }
    busy_ = false;
    changed_.notify_all();
  }
}

}  // namespace layerpress::residency
