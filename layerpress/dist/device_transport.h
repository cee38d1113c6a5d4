#pragma once

#include <string>
#include <vector>

namespace layerpress::dist {

/// The GPU of a rank, in the form in which ranks exchange it.
struct RankDevice {
  std::string host;       ///< the same for all processes of a machine, even in different containers
  std::string address;    ///< PCI address of the GPU on its host; "" if the rank has no GPU that NCCL can use
  std::string hindrance;  ///< why not, as a predicate of the rank: "computes on the CPU"

  std::string to_text() const;
  /// Throws DistributedError for text that to_text() did not write.
  static RankDevice from_text(const std::string& text);
};

/// Why tensors on devices are staged through host memory, or "" if they travel from device to device by NCCL, which needs a
/// GPU for every rank and refuses two ranks on one GPU. All ranks pass the same list, in the order of ranks, and so get the
/// same result.
std::string reason_for_staging(const std::vector<RankDevice>& ranks);

/// Whether all ranks are on one machine.
bool on_one_host(const std::vector<RankDevice>& ranks);

}  // namespace layerpress::dist
