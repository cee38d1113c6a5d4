#pragma once

#include <condition_variable>
#include <deque>
#include <exception>
#include <functional>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

#include "layerpress/output/journal.h"

namespace layerpress::output {

/// Makes finished subgraphs durable on a separate thread while the next subgraph is computed: syncs the files, then
/// adds the record to the journal.
class SubgraphCommitter {
 public:
  /// `sync` waits until all tensors written so far are on disk; other threads may continue to write.
  SubgraphCommitter(std::function<void()> sync, Journal& journal);
  /// Commits all queued records; failures are lost here, see finish().
  ~SubgraphCommitter();
  SubgraphCommitter(const SubgraphCommitter&) = delete;
  SubgraphCommitter& operator=(const SubgraphCommitter&) = delete;

  /// Queues the record of subgraph `index`, whose tensors are all written. Throws the exception of an earlier commit.
  void commit(std::size_t index, Json record);
  /// Waits until everything is durable. Throws the exception of a commit.
  void finish();
  /// The last durable subgraph.
  std::optional<std::size_t> durable() const;

 private:
  void run();
  const std::function<void()> sync_;
  Journal& journal_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::pair<std::size_t, Json>> queue_;
  std::optional<std::size_t> durable_;
  std::exception_ptr failure_;
  bool busy_ = false;
  bool stop_ = false;
  std::thread thread_;  // last member: starts after the others are initialized
};

}  // namespace layerpress::output
