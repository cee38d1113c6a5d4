#include "layerpress/dist/device_transport.h"

#include <algorithm>
#include <map>
#include <utility>

#include "layerpress/base/error.h"
#include "layerpress/base/json.h"

namespace layerpress::dist {

NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(RankDevice, host, address, hindrance)

std::string RankDevice::to_text() const { return Json(*this).dump(-1, ' ', true, Json::error_handler_t::replace); }

RankDevice RankDevice::from_text(const std::string& text) {
  try {
    return Json::parse(text).get<RankDevice>();
  } catch (const Json::exception&) {
    throw DistributedError(
        "[dist.devices] a rank sent a device that cannot be parsed; start the same version on all ranks");
  }
}

std::string reason_for_staging(const std::vector<RankDevice>& ranks) {
  std::map<std::pair<std::string, std::string>, std::size_t> users;  // by host and address
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    const RankDevice& own = ranks[rank];
    if (own.address.empty()) return fmt::format("rank {} {}", rank, own.hindrance);
    const auto [user, is_first] = users.emplace(std::pair(own.host, own.address), rank);
    if (!is_first) return fmt::format("ranks {} and {} share the GPU {}", user->second, rank, own.address);
  }
  return "";
}

bool on_one_host(const std::vector<RankDevice>& ranks) {
  return std::all_of(ranks.begin(), ranks.end(),
                     [&](const RankDevice& rank) { return rank.host == ranks.front().host; });
}

}  // namespace layerpress::dist
