#pragma once

#include <chrono>
#include <functional>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <vector>

#include "layerpress/dist/environment.h"
#include "layerpress/dist/peers.h"

namespace layerpress::dist {

/// How long ranks are waited for, and what is looked at meanwhile: `wait_on` may throw, which ends the waiting.
struct MeetingOptions {
  std::chrono::milliseconds timeout;
  std::function<void()> wait_on;
};

/// To be called while something is waited for: calls the options' own look, and `fail`, which throws, when the time is over.
std::function<void()> until_timeout(const MeetingOptions& options, std::function<void()> fail);

/// When a connection has failed: gives the others two seconds to say what happened, which explains more, and is thrown by the
/// options' look.
void await_explanation(const MeetingOptions& options);

/// Where ranks meet: the launcher's store, or one that rank 0 serves. Every connection is one; `serve` only for the first of
/// rank 0. Throws DistributedError when nobody answers at the address within the time-out, or its port is in use.
c10::intrusive_ptr<c10d::Store> connect_store(const Environment& environment, bool serve,
                                              const MeetingOptions& options);

/// The prefix of this meeting's keys: launchers' stores outlive restarts, and processes may meet more than once.
std::string meeting_prefix(c10d::Store& store, const Environment& environment);

/// The address of this machine from which packets to `host` go out, "" when none do.
std::string address_towards(const std::string& host, int port);

/// The network interface that has this address, "" when none has.
std::string interface_of(const std::string& address);

/// Introduces this rank and waits for all others; throws DistributedError naming those that do not come.
std::vector<Peer> meet(const c10::intrusive_ptr<c10d::Store>& store, const Environment& environment,
                       const MeetingOptions& options);

/// The network interfaces, comma-separated, that connect_gloo uses; "" where that is the loopback interface, or none.
std::string network_interfaces(const Environment& environment, const std::vector<Peer>& peers);

/// Connects the ranks for collective operations on the network interfaces that GLOO_SOCKET_IFNAME names, else on the one
/// through which the master's address is reached (another rank's, where the master's name means this machine itself). Throws
/// DistributedError.
c10::intrusive_ptr<c10d::ProcessGroupGloo> connect_gloo(const c10::intrusive_ptr<c10d::Store>& store,
                                                        const Environment& environment, const std::vector<Peer>& peers,
                                                        const MeetingOptions& options);

}  // namespace layerpress::dist
