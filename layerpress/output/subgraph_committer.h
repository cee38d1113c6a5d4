#pragma once

#include <condition_variable>
#include <deque>
#include <exception>
#include <mutex>
#include <optional>
#include <thread>

#include "layerpress/checkpoint/writer.h"
#include "layerpress/output/journal.h"

namespace layerpress::output {

/// Makes finished subgraphs durable in a thread of its own: waits for the disk, then adds the record to the journal, while
/// the next subgraph is computed.
class SubgraphCommitter {
 public:
  SubgraphCommitter(checkpoint::CheckpointWriter& writer, Journal& journal);
  /// Commits what was handed over; failures are lost here, see finish().
  ~SubgraphCommitter();
  SubgraphCommitter(const SubgraphCommitter&) = delete;
  SubgraphCommitter& operator=(const SubgraphCommitter&) = delete;

  /// Hands over the record of subgraph `index`, whose tensors are all written. Throws what an earlier commit threw.
  void commit(std::size_t index, Json record);
  /// Waits until everything is durable. Throws what a commit threw.
  void finish();
  /// The last subgraph that is durable.
  std::optional<std::size_t> durable() const;

 private:
  void run();
  checkpoint::CheckpointWriter& writer_;
  Journal& journal_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::pair<std::size_t, Json>> queue_;
  std::optional<std::size_t> durable_;
  std::exception_ptr failure_;
  bool busy_ = false;
  bool stop_ = false;
  std::thread thread_;  // last: starts when everything above is there
};

}  // namespace layerpress::output
