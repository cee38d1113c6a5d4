#include "layerpress/dist/peers.h"

#include <poll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>

#include "layerpress/base/error.h"
#include "layerpress/base/file.h"
#include "layerpress/base/text.h"

namespace layerpress::dist {
namespace {

std::string host_name() {
  char name[256] = {};
  return ::gethostname(name, sizeof(name) - 1) == 0 ? name : "unknown host";
}

/// The running kernel and the processes' name space.
std::string machine_name() {
  std::error_code failure;
  std::string text = std::filesystem::read_symlink("/proc/self/ns/pid", failure).string();
  try {
    text += read_text_file("/proc/sys/kernel/random/boot_id");
  } catch (const Error&) {
    text += host_name();
  }
  text.erase(std::remove(text.begin(), text.end(), '\n'), text.end());
  return text;
}

bool has_ended(int process) {
  struct pollfd state {
    process, POLLIN, 0
  };
  return ::poll(&state, 1, 0) == 1 && (state.revents & POLLIN) != 0;
}

}  // namespace

Peer Peer::self(int rank) { return {rank, host_name(), machine_name(), static_cast<int>(::getpid())}; }

std::string Peer::to_text() const {
  return Json{{"rank", rank}, {"host", host}, {"machine", machine}, {"process", process}}.dump(
      -1, ' ', true, Json::error_handler_t::replace);
}

Peer Peer::from_text(const std::string& text) {
  try {
    const Json json = Json::parse(text);
    return {json.at("rank").get<int>(), json.at("host").get<std::string>(), json.at("machine").get<std::string>(),
            json.at("process").get<int>()};
  } catch (const Json::exception&) {
    throw DistributedError("[dist.join] a rank introduces itself in words that are not understood: is it another version?");
  }
}

std::string Peer::name() const { return fmt::format("rank {} ({}, process {})", rank, host, process); }

LocalPeers::LocalPeers(const std::vector<Peer>& peers, const Peer& own) {
  for (const Peer& peer : peers) {
    if (peer.machine != own.machine) continue;
    ranks_.push_back(peer.rank);
    if (peer.rank == own.rank) continue;
    Descriptor process(static_cast<int>(::syscall(SYS_pidfd_open, peer.process, 0)));
    // A process that is gone already, or an old kernel: then its silence tells.
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
