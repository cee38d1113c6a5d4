#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace layerpress {

/// The value of a line such as "VmSize:   1234 kB" in /proc/self/status or /proc/meminfo, in bytes.
std::optional<std::uint64_t> status_bytes(std::string_view text, std::string_view name);

/// RssAnon + RssShmem in the text of /proc/self/status: memory that the kernel cannot reclaim.
std::uint64_t anonymous_bytes_in(std::string_view status);

}  // namespace layerpress
