#include "layerpress/dist/rendezvous.h"

#include <c10/util/Logging.h>
#include <fmt/ranges.h>
#include <netdb.h>
#include <sys/socket.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <sstream>

#include "layerpress/base/error.h"
#include "layerpress/dist/heartbeat.h"

namespace layerpress::dist {
namespace {

/// A launcher's store outlives a restart, and a process may join more than once: each meeting has keys of its own.
std::string prefix_of(const Environment& environment) { return "layerpress/" + environment.run; }

std::vector<std::uint8_t> bytes_of(const std::string& text) { return {text.begin(), text.end()}; }

struct AddressList {
  addrinfo* first = nullptr;
  ~AddressList() {
    if (first != nullptr) ::freeaddrinfo(first);
  }
};

/// The address of this machine from which packets to the master go out, "" when none do.
std::string address_towards(const Environment& environment) {
  AddressList list;
  addrinfo hints{};
  hints.ai_socktype = SOCK_DGRAM;
  const std::string port = std::to_string(environment.master_port);
  if (::getaddrinfo(environment.master_address.c_str(), port.c_str(), &hints, &list.first) != 0) return "";
  for (const addrinfo* info = list.first; info != nullptr; info = info->ai_next) {
    const Descriptor socket(::socket(info->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0));
    sockaddr_storage own{};
    socklen_t length = sizeof(own);
    // Connecting a datagram socket sends nothing; it chooses the route.
    if (socket.value() < 0 || ::connect(socket.value(), info->ai_addr, info->ai_addrlen) != 0 ||
        ::getsockname(socket.value(), reinterpret_cast<sockaddr*>(&own), &length) != 0)
      continue;
    char name[NI_MAXHOST] = {};
    if (::getnameinfo(reinterpret_cast<sockaddr*>(&own), length, name, sizeof(name), nullptr, 0, NI_NUMERICHOST) == 0)
      return name;
  }
  return "";
}

std::vector<std::shared_ptr<::gloo::transport::Device>> devices(const Environment& environment) {
  std::vector<std::shared_ptr<::gloo::transport::Device>> result;
  const char* named = std::getenv("GLOO_SOCKET_IFNAME");
  std::istringstream names(named == nullptr ? "" : named);
  for (std::string name; std::getline(names, name, ',');)
    if (!name.empty()) result.push_back(c10d::ProcessGroupGloo::createDeviceForInterface(name));
  if (!result.empty()) return result;
  const std::string address = address_towards(environment);
  if (address.empty())
    throw DistributedError(
        "[dist.join] no network interface leads to MASTER_ADDR {}; name one with GLOO_SOCKET_IFNAME",
        environment.master_address);
  result.push_back(c10d::ProcessGroupGloo::createDeviceForHostname(address));
  return result;
}

double seconds(std::chrono::milliseconds time) { return std::chrono::duration<double>(time).count(); }

}  // namespace

c10::intrusive_ptr<c10d::Store> connect_store(const Environment& environment, bool serve,
                                              std::chrono::milliseconds timeout) {
  // What fails is thrown and said once, in our own words; the library's account with stack traces is for its developers.
  if (std::getenv("TORCH_CPP_LOG_LEVEL") == nullptr) FLAGS_caffe2_log_level = c10::GLOG_FATAL;
  c10d::TCPStoreOptions options;
  options.port = static_cast<std::uint16_t>(environment.master_port);
  options.isServer = serve;
  options.waitWorkers = false;
  options.timeout = timeout;
  try {
    return c10::make_intrusive<c10d::PrefixStore>(
        prefix_of(environment), c10::make_intrusive<c10d::TCPStore>(environment.master_address, options));
  } catch (const std::exception& error) {
    const std::string cause = cause_of(error);
    if (serve)
      throw DistributedError("[dist.join] rank 0 cannot serve the ranks' store on port {}: {}; set another MASTER_PORT",
                             environment.master_port, cause);
    throw DistributedError(
        "[dist.join] rank {}: no store answers at {}:{} within {:g} s: {}; check MASTER_ADDR, MASTER_PORT and that rank 0 "
        "runs",
        environment.rank, environment.master_address, environment.master_port, seconds(timeout), cause);
  }
}

std::vector<Peer> meet(c10d::Store& store, const Environment& environment, std::chrono::milliseconds timeout) {
  const auto key = [](int rank) { return fmt::format("peer/{}", rank); };
  const auto until = std::chrono::steady_clock::now() + timeout;
  store.set(key(environment.rank), bytes_of(Peer::self(environment.rank).to_text()));
  std::vector<int> absent;
  std::vector<Peer> peers;
  for (int rank = 0; rank < environment.world_size; ++rank) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(until - std::chrono::steady_clock::now());
    try {
      if (left.count() > 0) store.wait({key(rank)}, left);
      if (left.count() > 0 || store.check({key(rank)})) {
        const std::vector<std::uint8_t> text = store.get(key(rank));
        peers.push_back(Peer::from_text({text.begin(), text.end()}));
        continue;
      }
    } catch (const Error&) {
      throw;
    } catch (const std::exception&) {
      // Not there in time.
    }
    absent.push_back(rank);
  }
  if (!absent.empty())
    throw DistributedError("[dist.join] {} {} of {} did not come to {}:{} within {:g} s; see why they did not start",
                           absent.size() == 1 ? "rank" : "ranks", fmt::join(absent, ", "), environment.world_size,
                           environment.master_address, environment.master_port, seconds(timeout));
  return peers;
}

c10::intrusive_ptr<c10d::ProcessGroupGloo> connect_gloo(const c10::intrusive_ptr<c10d::Store>& store,
                                                        const Environment& environment,
                                                        std::chrono::milliseconds timeout) {
  try {
    auto options = c10d::ProcessGroupGloo::Options::create(timeout);
    options->devices = devices(environment);
    return c10::make_intrusive<c10d::ProcessGroupGloo>(c10::make_intrusive<c10d::PrefixStore>("gloo", store),
                                                       environment.rank, environment.world_size, options);
  } catch (const Error&) {
    throw;
  } catch (const std::exception& error) {
    throw DistributedError(
        "[dist.join] rank {} cannot connect to the other ranks: {}; name the network interface with GLOO_SOCKET_IFNAME",
        environment.rank, cause_of(error));
  }
}

}  // namespace layerpress::dist
