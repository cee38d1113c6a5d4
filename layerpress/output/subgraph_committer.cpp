#include "layerpress/output/subgraph_committer.h"

#include <utility>

namespace layerpress::output {

SubgraphCommitter::SubgraphCommitter(std::function<void()> sync, Journal& journal)
    : sync_(std::move(sync)), journal_(journal), thread_([this] { run(); }) {}

SubgraphCommitter::~SubgraphCommitter() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void SubgraphCommitter::commit(std::size_t index, Json record) {
  {
    const std::lock_guard lock(mutex_);
    if (failure_) std::rethrow_exception(failure_);
    queue_.emplace_back(index, std::move(record));
  }
  changed_.notify_all();
}

void SubgraphCommitter::finish() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return (queue_.empty() && !busy_) || failure_; });
  if (failure_) std::rethrow_exception(failure_);
}

std::optional<std::size_t> SubgraphCommitter::durable() const {
  const std::lock_guard lock(mutex_);
  return durable_;
}

void SubgraphCommitter::run() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [&] { return !queue_.empty() || stop_; });
    if (queue_.empty() || failure_) return;
    // One sync serves all records that were queued in the meantime.
    const std::deque<std::pair<std::size_t, Json>> ready = std::exchange(queue_, {});
    busy_ = true;
    lock.unlock();
    std::exception_ptr failure;
    try {
      sync_();
      for (const auto& [index, record] : ready) journal_.append(record);
    } catch (...) {
      failure = std::current_exception();
    }
    lock.lock();
    busy_ = false;
    failure_ = failure;
    if (!failure) durable_ = ready.back().first;
    changed_.notify_all();
  }
}

}  // namespace layerpress::output
