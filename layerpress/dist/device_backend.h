#pragma once

#include <c10/core/Device.h>

#include <string>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "layerpress/dist/device_transport.h"

namespace layerpress::dist {

/// How NCCL identifies this device. The address is empty if libtorch is not for CUDA, if it was built with another NCCL
/// version than this program, or if LAYERPRESS_NCCL=0 in the environment turns NCCL off.
RankDevice describe_device(const at::Device& device);

/// c10d's process group over NCCL, not yet connected. Operations have no time-out and no watchdog; both are left to the
/// caller. `interfaces` names network interfaces, comma-separated; NCCL_SOCKET_IFNAME takes precedence, and "" leaves
/// the choice to NCCL. REQUIRES: describe_device gave an address.
c10::intrusive_ptr<c10d::Backend> make_device_backend(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
                                                      const std::string& interfaces);

}  // namespace layerpress::dist
