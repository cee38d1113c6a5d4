#pragma once

#include <chrono>
#include <functional>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <vector>

#include "layerpress/dist/environment.h"
#include "layerpress/dist/peers.h"

namespace layerpress::dist {

/// The time-out of a meeting. `wait_on` is called while waiting; it may throw, which ends the waiting.
struct MeetingOptions {
  std::chrono::milliseconds timeout;
  std::function<void()> wait_on;
};

/// Returns a function to call repeatedly while waiting. It calls options.wait_on, and `fail`, which throws, after the
/// time-out.
std::function<void()> until_timeout(const MeetingOptions& options, std::function<void()> fail);

/// After a broken connection: gives the other ranks two seconds to report a failure, which explains more.
/// options.wait_on throws the reported failure.
void await_explanation(const MeetingOptions& options);

/// Connects to the store of the launcher or of rank 0. Every call makes a new connection; `serve` is for the first call
/// of rank 0. Throws DistributedError if the address does not answer within the time-out, or if its port is in use.
c10::intrusive_ptr<c10d::Store> connect_store(const Environment& environment, bool serve,
                                              const MeetingOptions& options);

/// The key prefix of this meeting. It is needed because launchers' stores survive restarts, and processes may meet
/// repeatedly.
std::string meeting_prefix(c10d::Store& store, const Environment& environment);

/// This machine's source address for packets to `host`, or "" if there is no route.
std::string address_towards(const std::string& host, int port);

/// The network interface with this address, or "" if there is none.
std::string interface_of(const std::string& address);

/// Introduces this rank and waits for all others; throws DistributedError naming those that do not join.
std::vector<Peer> meet(const c10::intrusive_ptr<c10d::Store>& store, const Environment& environment,
                       const MeetingOptions& options);

/// The network interfaces, comma-separated, that connect_gloo uses; "" for the loopback interface, or if there is none.
std::string network_interfaces(const Environment& environment, const std::vector<Peer>& peers);

/// Connects the ranks for collective operations. Uses the network interfaces named by GLOO_SOCKET_IFNAME, otherwise the
/// one that leads to the master's address (to another machine's rank, if the master's name means this machine). Throws
/// DistributedError.
c10::intrusive_ptr<c10d::ProcessGroupGloo> connect_gloo(const c10::intrusive_ptr<c10d::Store>& store,
                                                        const Environment& environment, const std::vector<Peer>& peers,
                                                        const MeetingOptions& options);

}  // namespace layerpress::dist
