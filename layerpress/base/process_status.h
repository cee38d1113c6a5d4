#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace layerpress {

/// The figure of a line such as "VmSize:   1234 kB" in the text of /proc/self/status or /proc/meminfo, in bytes.
std::optional<std::uint64_t> status_bytes(std::string_view text, std::string_view name);

/// RssAnon + RssShmem of such a text: what the kernel cannot drop.
std::uint64_t anonymous_bytes_in(std::string_view status);

}  // namespace layerpress
