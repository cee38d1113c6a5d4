#pragma once

#include <string>
#include <vector>

#include "layerpress/base/descriptor.h"
#include "layerpress/base/json.h"

namespace layerpress::dist {

/// The running kernel: the same for all processes of this machine, whatever containers they run in.
std::string host_identity();

/// This machine's name.
std::string host_name();

/// Where a rank runs, as it tells the others.
struct Peer {
  int rank = 0;
  std::string host;
  std::string machine;  ///< the same for processes that see each other's process numbers
  int process = 0;
  std::string address;     ///< on which it can be reached by others of the network that leads to the master
  std::vector<int> cores;  ///< that it may use

  /// This process.
  static Peer self(int rank, std::string address);
  std::string to_text() const;
  static Peer from_text(const std::string& text);  ///< throws DistributedError
  /// "rank 3 (host, process 17)"
  std::string name() const;
};

/// Ranks that run beside `own`, itself included, in order.
std::vector<int> ranks_of_machine(const std::vector<Peer>& peers, const Peer& own);

/// Cores that are `own`'s when every core is divided among the ranks of the machine that may use it; at least 1.
int cores_of(const std::vector<Peer>& peers, const Peer& own);

/// Notices at once when processes on the same machine end; elsewhere only silence tells.
class LocalPeers {
 public:
  /// Watches those of `peers` that run beside `own`.
  LocalPeers(const std::vector<Peer>& peers, const Peer& own);
  /// Ranks that have ended.
  std::vector<int> ended() const;

 private:
  struct Watched {
    int rank;
    Descriptor process;
  };
  std::vector<Watched> watched_;
};

}  // namespace layerpress::dist
