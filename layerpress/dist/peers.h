#pragma once

#include <string>
#include <vector>

#include "layerpress/base/descriptor.h"
#include "layerpress/base/json.h"

namespace layerpress::dist {

/// Where a rank runs, as it tells the others.
struct Peer {
  int rank = 0;
  std::string host;
  std::string machine;  ///< the same for processes that see each other's process numbers
  int process = 0;

  /// This process.
  static Peer self(int rank);
  std::string to_text() const;
  static Peer from_text(const std::string& text);  ///< throws DistributedError
  /// "rank 3 (host, process 17)"
  std::string name() const;
};

/// Notices at once when processes on the same machine end; elsewhere only silence tells.
class LocalPeers {
 public:
  /// Watches those of `peers` that run beside `own`.
  LocalPeers(const std::vector<Peer>& peers, const Peer& own);
  /// Ranks that have ended.
  std::vector<int> ended() const;
  /// Ranks of this machine, this one included, in order.
  const std::vector<int>& ranks() const { return ranks_; }

 private:
  struct Watched {
    int rank;
    Descriptor process;
  };
  std::vector<int> ranks_;
  std::vector<Watched> watched_;
};

}  // namespace layerpress::dist
