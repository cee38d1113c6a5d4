#pragma once

#include <string>
#include <vector>

#include "layerpress/base/files/descriptor.h"
#include "layerpress/base/json.h"

namespace layerpress::dist {

/// Identifies the running kernel: the same for all processes of this machine, even in different containers.
std::string host_identity();

/// This machine's name.
std::string host_name();

/// Where a rank runs, in the form in which ranks exchange it.
struct Peer {
  int rank = 0;
  std::string host;
  std::string machine;  ///< the same for processes in one process-id namespace
  int process = 0;
  std::string address;     ///< for other ranks, on the network that leads to the master
  std::vector<int> cores;  ///< usable by this rank

  /// This process.
  static Peer self(int rank, std::string address);
  std::string to_text() const;
  static Peer from_text(const std::string& text);  ///< throws DistributedError
  /// "rank 3 (host, process 17)"
  std::string name() const;
};

/// Ranks on the machine of `own`, including itself, in order.
std::vector<int> ranks_of_machine(const std::vector<Peer>& peers, const Peer& own);

/// The number of cores for `own` if each core is divided among the ranks of the machine that may use it; at least 1.
int cores_of(const std::vector<Peer>& peers, const Peer& own);

/// Notices at once when processes on the same machine end. On other machines, only their silence shows it.
class LocalPeers {
 public:
  /// Watches the `peers` on the machine of `own`.
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
