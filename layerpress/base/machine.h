#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

namespace layerpress {

/// Cores that this process may use: the affinity mask, limited by the container's CPU quota (cgroup v1 and v2); at
/// least 1.
int usable_cores();

/// Bytes of memory that this process may still allocate: the minimum of the machine's available memory, the room left
/// in the container's limits (cgroup v1 and v2, every level up to the root; reclaimable file pages count as free) and
/// the room left in ulimits (RLIMIT_AS, RLIMIT_DATA); 0 if unknown.
std::uint64_t available_memory();
/// The same with other roots than /proc and /sys/fs/cgroup.
std::uint64_t available_memory(const std::filesystem::path& proc, const std::filesystem::path& groups);

/// Memory of this process that the kernel cannot reclaim: RssAnon + RssShmem of /proc/self/status.
std::uint64_t anonymous_bytes();

/// The largest resident set this process has had, in bytes (all mapped pages included).
std::uint64_t peak_resident_bytes();

/// The folder that holds the running executable.
std::string executable_directory();

}  // namespace layerpress
