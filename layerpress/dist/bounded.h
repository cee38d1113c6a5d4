#pragma once

#include <chrono>
#include <condition_variable>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

namespace layerpress::dist {

/// The time-out that libraries get for an operation. The operation ends when the ranks end; its duration means nothing.
constexpr std::chrono::milliseconds kForever = std::chrono::hours(24 * 365);

/// Keeps what a thread that never ends may still use, as long as the process lives.
inline void keep_forever(std::shared_ptr<void> used) {
  static std::mutex mutex;
  static auto& kept = *new std::vector<std::shared_ptr<void>>;
  const std::lock_guard lock(mutex);
  kept.push_back(std::move(used));
}

/// Runs `work` on a separate thread and waits for its result until `wait_on` (called every 50 ms) throws. For library
/// calls that may never return: if `wait_on` throws, the thread is abandoned together with everything it holds.
template <typename Result>
Result run_bounded(std::function<Result()> work, const std::function<void()>& wait_on) {
  struct Shared {
    std::mutex mutex;
    std::condition_variable changed;
    std::optional<Result> result;
    std::exception_ptr failure;
    bool done = false;
  };
  const auto shared = std::make_shared<Shared>();
  std::thread([shared, work = std::move(work)] {
    std::optional<Result> result;
    std::exception_ptr failure;
    try {
      result.emplace(work());
    } catch (...) {
      failure = std::current_exception();
    }
    {
      const std::lock_guard lock(shared->mutex);
      shared->result = std::move(result);
      shared->failure = failure;
      shared->done = true;
    }
    shared->changed.notify_all();
  }).detach();
  std::unique_lock lock(shared->mutex);
  while (!shared->changed.wait_for(lock, std::chrono::milliseconds(50), [&] { return shared->done; })) {
    lock.unlock();
    wait_on();
    lock.lock();
  }
  if (shared->failure) std::rethrow_exception(shared->failure);
  return std::move(*shared->result);
}

}  // namespace layerpress::dist
