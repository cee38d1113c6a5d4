#pragma once

#include <c10/core/Device.h>

#include <string>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "layerpress/dist/device_transport.h"

namespace layerpress::dist {

/// How NCCL tells this device from others; without an address where libtorch is not for CUDA or was built with another NCCL
/// than this program, or where LAYERPRESS_NCCL=0 in the environment turns it off.
RankDevice describe_device(const at::Device& device);

/// c10d's process group over NCCL; talks to nobody yet. Operations have no time-out and nothing watches them: that is for
/// the caller. `interfaces` names network interfaces, comma-separated, for which NCCL_SOCKET_IFNAME has precedence; "" leaves
/// the choice to NCCL. REQUIRES: describe_device gave an address.
c10::intrusive_ptr<c10d::Backend> make_device_backend(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
                                                      const std::string& interfaces);

}  // namespace layerpress::dist
