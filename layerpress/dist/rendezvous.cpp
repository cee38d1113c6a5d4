#include "layerpress/dist/rendezvous.h"

#include <fmt/ranges.h>
#include <ifaddrs.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <exception>
#include <memory>
#include <sstream>
#include <thread>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>
#include <utility>

#include "layerpress/base/error.h"
#include "layerpress/base/text.h"
#include "layerpress/dist/bounded.h"
#include "layerpress/dist/heartbeat.h"

namespace layerpress::dist {
namespace {

std::vector<std::uint8_t> raw_bytes(const std::string& text) { return {text.begin(), text.end()}; }

struct AddressList {
  addrinfo* first = nullptr;
  ~AddressList() {
    if (first != nullptr) ::freeaddrinfo(first);
  }
};

struct InterfaceList {
  ifaddrs* first = nullptr;
  ~InterfaceList() {
    if (first != nullptr) ::freeifaddrs(first);
  }
};

/// The numeric form, or "" if there is none.
std::string text_of(const sockaddr& address, socklen_t length) {
  char name[NI_MAXHOST] = {};
  return ::getnameinfo(&address, length, name, sizeof(name), nullptr, 0, NI_NUMERICHOST) == 0 ? name : "";
}

bool is_loopback(const std::string& address) { return address.starts_with("127.") || address == "::1"; }

/// The address at which other machines reach this one. If the master's name means this machine, own.address is a
/// loopback address; the source address for packets to a rank on another machine then takes its place.
std::string own_address(const std::vector<Peer>& peers, const Peer& own) {
  if (!is_loopback(own.address)) return own.address;
  for (const Peer& other : peers)
    if (other.host != own.host && !is_loopback(other.address) && !other.address.empty())
      return address_towards(other.address, 1);
  return own.address;
}

std::string named_interfaces() { return environment_variable("GLOO_SOCKET_IFNAME"); }

std::vector<std::shared_ptr<::gloo::transport::Device>> devices(const Environment& environment,
                                                                const std::vector<Peer>& peers) {
  std::vector<std::shared_ptr<::gloo::transport::Device>> result;
  std::istringstream names(named_interfaces());
  for (std::string name; std::getline(names, name, ',');)
    if (!name.empty()) result.push_back(c10d::ProcessGroupGloo::createDeviceForInterface(name));
  if (!result.empty()) return result;
  const std::string address = own_address(peers, peers[static_cast<std::size_t>(environment.rank)]);
  if (address.empty())
    throw DistributedError("[dist.join] no network interface leads to MASTER_ADDR {}; name one with GLOO_SOCKET_IFNAME",
                           environment.master_address);
  result.push_back(c10d::ProcessGroupGloo::createDeviceForHostname(address));
  return result;
}

double seconds(std::chrono::milliseconds time) { return std::chrono::duration<double>(time).count(); }

/// Tells the other ranks that this one no longer waits for them.
constexpr const char* kGaveUp = "gave up";

/// Names the ranks that have not set their keys. The rank that serves the store stays until the others know it, too.
[[noreturn]] void refuse_missing(c10d::Store& store, const std::vector<std::string>& keys,
                                 const Environment& environment, const MeetingOptions& options) {
  std::vector<int> ranks;
  try {
    store.set(kGaveUp, raw_bytes("1"));
    for (int rank = 0; rank < environment.world_size; ++rank)
      if (!store.check({keys[static_cast<std::size_t>(rank)]})) ranks.push_back(rank);
  } catch (const std::exception&) {
    throw DistributedError(
        "[dist.join] rank {}: the ranks' store at {}:{} no longer answers, because the process that serves it has "
        "ended; its message says why",
        environment.rank, environment.master_address, environment.master_port);
  }
  if (environment.rank == 0 && !environment.has_agent_store) std::this_thread::sleep_for(std::chrono::seconds(1));
  if (ranks.empty())
    throw DistributedError("[dist.join] rank {}: some ranks joined later than within {:g} s; raise --timeout",
                           environment.rank, seconds(options.timeout));
  throw DistributedError("[dist.join] {} {} of {} did not join at {}:{} within {:g} s; check why they did not start",
                         ranks.size() == 1 ? "rank" : "ranks", fmt::join(ranks, ", "), environment.world_size,
                         environment.master_address, environment.master_port, seconds(options.timeout));
}

}  // namespace

std::function<void()> until_timeout(const MeetingOptions& options, std::function<void()> fail) {
  // A library's own time-out should come first, because its message may say more, even on a busy machine.
  const auto end = std::chrono::steady_clock::now() + options.timeout + std::chrono::seconds(10);
  return [end, fail = std::move(fail), wait_on = options.wait_on] {
    if (wait_on) wait_on();
    if (std::chrono::steady_clock::now() > end) fail();
  };
}

void await_explanation(const MeetingOptions& options) {
  if (!options.wait_on) return;
  for (int attempt = 0; attempt < 40; ++attempt) {
    options.wait_on();
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
}

std::string address_towards(const std::string& host, int port) {
  AddressList list;
  addrinfo hints{};
  hints.ai_socktype = SOCK_DGRAM;
  if (::getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &list.first) != 0) return "";
  for (const addrinfo* info = list.first; info != nullptr; info = info->ai_next) {
    const Descriptor socket(::socket(info->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0));
    sockaddr_storage own{};
    socklen_t length = sizeof(own);
    // Connecting a datagram socket sends nothing; it only chooses the route.
    if (socket.value() < 0 || ::connect(socket.value(), info->ai_addr, info->ai_addrlen) != 0 ||
        ::getsockname(socket.value(), reinterpret_cast<sockaddr*>(&own), &length) != 0)
      continue;
    std::string address = text_of(reinterpret_cast<const sockaddr&>(own), length);
    if (!address.empty()) return address;
  }
  return "";
}

std::string interface_of(const std::string& address) {
  InterfaceList list;
  if (::getifaddrs(&list.first) != 0) return "";
  for (const ifaddrs* interface = list.first; interface != nullptr; interface = interface->ifa_next) {
    if (interface->ifa_addr == nullptr) continue;
    const int family = interface->ifa_addr->sa_family;
    if (family != AF_INET && family != AF_INET6) continue;
    const socklen_t length = family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
    if (text_of(*interface->ifa_addr, length) == address) return interface->ifa_name;
  }
  return "";
}

std::string network_interfaces(const Environment& environment, const std::vector<Peer>& peers) {
  if (std::string named = named_interfaces(); !named.empty()) return named;
  const std::string address = own_address(peers, peers[static_cast<std::size_t>(environment.rank)]);
  return address.empty() || is_loopback(address) ? "" : interface_of(address);
}

c10::intrusive_ptr<c10d::Store> connect_store(const Environment& environment, bool serve,
                                              const MeetingOptions& options) {
  using StorePointer = c10::intrusive_ptr<c10d::Store>;
  c10d::TCPStoreOptions store;
  store.port = static_cast<std::uint16_t>(environment.master_port);
  store.isServer = serve;
  store.waitWorkers = false;
  store.timeout = options.timeout;
  const auto no_answer = [&](const std::string& cause) {
    throw DistributedError(
        "[dist.join] rank {}: no store answers at {}:{} within {:g} s{}; check MASTER_ADDR, MASTER_PORT and that rank "
        "0 runs",
        environment.rank, environment.master_address, environment.master_port, seconds(options.timeout), cause);
  };
  try {
    // Some other program may listen there and never answer.
    return run_bounded<StorePointer>(
        [address = environment.master_address, store] {
          return StorePointer(c10::make_intrusive<c10d::TCPStore>(address, store));
        },
        until_timeout(options, [&] { no_answer(""); }));
  } catch (const Error&) {
    throw;
  } catch (const std::exception& error) {
    const std::string cause = cause_of(error);
    if (serve)
      throw DistributedError(
          "[dist.join] rank 0 cannot serve the ranks' store at {}:{}: {}; check that MASTER_ADDR is this machine, or "
          "set another MASTER_PORT",
          environment.master_address, environment.master_port, cause);
    no_answer(": " + cause);
    throw;
  }
}

std::string meeting_prefix(c10d::Store& store, const Environment& environment) {
  const std::string run = "layerpress/" + environment.run;
  return fmt::format("{}/{}", run, store.add(fmt::format("{}/meetings/{}", run, environment.rank), 1));
}

std::vector<Peer> meet(const c10::intrusive_ptr<c10d::Store>& store, const Environment& environment,
                       const MeetingOptions& options) {
  const Peer own = Peer::self(environment.rank, address_towards(environment.master_address, environment.master_port));
  std::vector<std::string> keys;
  for (int rank = 0; rank < environment.world_size; ++rank) keys.push_back(fmt::format("peer/{}", rank));
  store->set(keys[static_cast<std::size_t>(environment.rank)], raw_bytes(own.to_text()));
  using Texts = std::vector<std::vector<std::uint8_t>>;
  // Each rank asks for all, so that more of them ask more seldom.
  const std::chrono::milliseconds pause(std::max(20, 2 * environment.world_size));
  // Empty if some ranks did not join; those are named below.
  const auto texts = run_bounded<Texts>(
      [store, keys, pause, end = std::chrono::steady_clock::now() + options.timeout]() -> Texts {
        try {
          while (!store->check(keys)) {
            if (std::chrono::steady_clock::now() > end || store->check({kGaveUp})) return {};
            std::this_thread::sleep_for(pause);
          }
          return store->multiGet(keys);
        } catch (const std::exception&) {
          return {};
        }
      },
      until_timeout(options, [&] {
        throw DistributedError("[dist.join] rank {}: the ranks' store at {}:{} no longer answers", environment.rank,
                               environment.master_address, environment.master_port);
      }));
  if (texts.empty()) refuse_missing(*store, keys, environment, options);
  std::vector<Peer> peers;
  for (const auto& text : texts) peers.push_back(Peer::from_text({text.begin(), text.end()}));
  return peers;
}

c10::intrusive_ptr<c10d::ProcessGroupGloo> connect_gloo(const c10::intrusive_ptr<c10d::Store>& store,
                                                        const Environment& environment, const std::vector<Peer>& peers,
                                                        const MeetingOptions& options) {
  using GroupPointer = c10::intrusive_ptr<c10d::ProcessGroupGloo>;
  const auto fail = [rank = environment.rank] {
    throw DistributedError(
        "[dist.join] rank {} cannot connect to the other ranks; name the network interface with GLOO_SOCKET_IFNAME",
        rank);
  };
  try {
    auto gloo = c10d::ProcessGroupGloo::Options::create(options.timeout);
    gloo->devices = devices(environment, peers);
    return run_bounded<GroupPointer>(
        [store, gloo, rank = environment.rank, size = environment.world_size] {
          return c10::make_intrusive<c10d::ProcessGroupGloo>(store, rank, size, gloo);
        },
        until_timeout(options, fail));
  } catch (const Error&) {
    throw;
  } catch (const std::exception&) {
    await_explanation(options);
    fail();
    throw;
  }
}

}  // namespace layerpress::dist
