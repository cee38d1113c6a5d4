#pragma once

#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <chrono>
#include <memory>
#include <vector>

#include "layerpress/dist/environment.h"
#include "layerpress/dist/peers.h"

namespace layerpress::dist {

/// Where ranks meet: the launcher's store, or one that rank 0 serves. Every connection is one; `serve` only for the first of
/// rank 0. Throws DistributedError when nobody answers at the address within the time-out, or its port is in use.
c10::intrusive_ptr<c10d::Store> connect_store(const Environment& environment, bool serve,
                                              std::chrono::milliseconds timeout);

/// Introduces this rank and waits for all others; throws DistributedError naming those that do not come.
std::vector<Peer> meet(c10d::Store& store, const Environment& environment, std::chrono::milliseconds timeout);

/// Connects the ranks for collective operations on the network interfaces that GLOO_SOCKET_IFNAME names, else on the one
/// through which the master's address is reached. Throws DistributedError.
c10::intrusive_ptr<c10d::ProcessGroupGloo> connect_gloo(const c10::intrusive_ptr<c10d::Store>& store,
                                                        const Environment& environment,
                                                        std::chrono::milliseconds timeout);

}  // namespace layerpress::dist
