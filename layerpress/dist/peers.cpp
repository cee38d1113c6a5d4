#include "layerpress/dist/peers.h"

#include <poll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <system_error>
#include <utility>

#include "layerpress/base/error.h"
#include "layerpress/base/file.h"
#include "layerpress/base/system/machine.h"

namespace layerpress::dist {

std::string host_name() {
  char name[256] = {};
  return ::gethostname(name, sizeof(name) - 1) == 0 ? name : "unknown host";
}

std::string host_identity() {
  std::string text;
  try {
    text = read_text_file("/proc/sys/kernel/random/boot_id");
  } catch (const Error&) {
    text = host_name();
  }
  text.erase(std::remove(text.begin(), text.end(), '\n'), text.end());
  return text;
}

namespace {

/// The running kernel and the process-id namespace.
std::string machine_name() {
  std::error_code failure;
  return std::filesystem::read_symlink("/proc/self/ns/pid", failure).string() + host_identity();
}

bool has_ended(int process) {
  struct pollfd state {
    process, POLLIN, 0
  };
  return ::poll(&state, 1, 0) == 1 && (state.revents & POLLIN) != 0;
}

}  // namespace

Peer Peer::self(int rank, std::string address) {
  return {rank, host_name(), machine_name(), static_cast<int>(::getpid()), std::move(address), allowed_cores()};
}

NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Peer, rank, host, machine, process, address, cores)

std::string Peer::to_text() const { return Json(*this).dump(-1, ' ', true, Json::error_handler_t::replace); }

Peer Peer::from_text(const std::string& text) {
  try {
    return Json::parse(text).get<Peer>();
  } catch (const Json::exception&) {
    throw DistributedError(
        "[dist.join] a rank sent an introduction that cannot be parsed; start the same version on all ranks");
  }
}

std::string Peer::name() const { return fmt::format("rank {} ({}, process {})", rank, host, process); }

std::vector<int> ranks_of_machine(const std::vector<Peer>& peers, const Peer& own) {
  std::vector<int> ranks;
  for (const Peer& peer : peers)
    if (peer.machine == own.machine) ranks.push_back(peer.rank);
  return ranks;
}

int cores_of(const std::vector<Peer>& peers, const Peer& own) {
  const std::vector<int> ranks = ranks_of_machine(peers, own);
  double share = 0;
  for (const int core : own.cores) {
    int sharing = 0;
    for (const int rank : ranks) {
      const std::vector<int>& cores = peers[static_cast<std::size_t>(rank)].cores;
      sharing += static_cast<int>(std::count(cores.begin(), cores.end(), core));
    }
    share += 1.0 / std::max(1, sharing);
  }
  // A container's quota applies to all of its ranks together.
  const int usable = usable_cores();
  if (usable < static_cast<int>(own.cores.size())) share = std::min(share, usable / static_cast<double>(ranks.size()));
  return std::max(1, static_cast<int>(share + 1e-6));
}

LocalPeers::LocalPeers(const std::vector<Peer>& peers, const Peer& own) {
  for (const Peer& peer : peers) {
    if (peer.machine != own.machine || peer.rank == own.rank) continue;
    Descriptor process(static_cast<int>(::syscall(SYS_pidfd_open, peer.process, 0)));
    // If the process has already ended or the kernel is old, only its silence shows it.
    if (process.value() >= 0) watched_.push_back({peer.rank, std::move(process)});
  }
}

std::vector<int> LocalPeers::ended() const {
  std::vector<int> ranks;
  for (const Watched& watched : watched_)
    if (has_ended(watched.process.value())) ranks.push_back(watched.rank);
  return ranks;
}

}  // namespace layerpress::dist
