#include "layerpress/dist/device_transport.h"

#include <algorithm>
#include <map>
#include <utility>

#include "layerpress/base/error.h"
#include "layerpress/base/json.h"

namespace layerpress::dist {

std::string RankDevice::to_text() const {
  return Json{{"host", host}, {"address", address}, {"hindrance", hindrance}}.dump(-1, ' ', true,
                                                                                   Json::error_handler_t::replace);
}

RankDevice RankDevice::from_text(const std::string& text) {
  try {
    const Json json = Json::parse(text);
    return {json.at("host").get<std::string>(), json.at("address").get<std::string>(),
            json.at("hindrance").get<std::string>()};
  } catch (const Json::exception&) {
    throw DistributedError(
        "[dist.devices] a rank sent a device that cannot be parsed; start the same version on all ranks");
  }
}

DeviceTransport choose_transport(const std::vector<RankDevice>& ranks) {
  std::map<std::pair<std::string, std::string>, std::size_t> users;  // by host and address
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    const RankDevice& own = ranks[rank];
    if (own.address.empty()) return {false, fmt::format("rank {} {}", rank, own.hindrance)};
    const auto [user, is_first] = users.emplace(std::pair(own.host, own.address), rank);
    if (!is_first) return {false, fmt::format("ranks {} and {} share the GPU {}", user->second, rank, own.address)};
  }
  return {true, ""};
}

bool on_one_host(const std::vector<RankDevice>& ranks) {
  return std::all_of(ranks.begin(), ranks.end(),
                     [&](const RankDevice& rank) { return rank.host == ranks.front().host; });
}

}  // namespace layerpress::dist
