#pragma once

#include <string>
#include <vector>

namespace layerpress::dist {

/// The GPU that a rank computes on, as it tells the others.
struct RankDevice {
  std::string host;       ///< the same for all processes of a machine, whatever containers they run in
  std::string address;    ///< of the GPU on its host's PCI bus; "" where the rank has none that NCCL can use
  std::string hindrance;  ///< why it has none, as what the rank does: "computes on the CPU"

  std::string to_text() const;
  /// Throws DistributedError for what to_text() has not written.
  static RankDevice from_text(const std::string& text);
};

/// How tensors on devices travel between the ranks.
struct DeviceTransport {
  bool direct = false;  ///< from device to device by NCCL; else through host memory
  std::string reason;   ///< why not direct
};

/// NCCL needs a GPU for every rank and refuses two ranks on one. All ranks give the same list, in the order of ranks, and so
/// get the same answer.
DeviceTransport choose_transport(const std::vector<RankDevice>& ranks);

/// Whether all of them are on one machine.
bool on_one_host(const std::vector<RankDevice>& ranks);

}  // namespace layerpress::dist
