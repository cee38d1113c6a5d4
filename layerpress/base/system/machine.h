#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace layerpress {

/// Processors that this process may run on, one of each core: the affinity mask without further hardware threads of a
/// core, which share its arithmetic units and caches.
std::vector<int> allowed_cores();
/// Those of `processors` that are no further hardware thread of a core, by the files under `system`,
/// /sys/devices/system/cpu.
std::vector<int> one_per_core(const std::vector<int>& processors, const std::filesystem::path& system);

/// Cores' worth of time that the container's quota leaves to this process (cgroup v1 and v2, every level up to the
/// root); infinite without one. From other roots than /proc and /sys/fs/cgroup in tests.
double cpu_quota(const std::filesystem::path& proc, const std::filesystem::path& groups);

/// The number of cores that this process may use: the allowed ones, limited by the container's CPU quota; at least 1.
int usable_cores();
/// Threads for a process that shares them with no other: OMP_NUM_THREADS where it is set, else the usable cores.
int usual_threads();

/// Bytes of memory that this process may still allocate: the minimum of the machine's available memory, the room left
/// in the container's limits (cgroup v1 and v2, every level up to the root; reclaimable file pages count as free) and
/// the room left in ulimits (RLIMIT_AS, RLIMIT_DATA); 0 if unknown.
std::uint64_t available_memory();
/// The same with other roots than /proc and /sys/fs/cgroup.
std::uint64_t available_memory(const std::filesystem::path& proc, const std::filesystem::path& groups);

/// Memory of this process that the kernel cannot reclaim: RssAnon + RssShmem of /proc/self/status.
std::uint64_t anonymous_bytes();

/// Gives the pages that only freed allocations were on back to the kernel. The allocator keeps those between small allocations that
/// live longer, and more of them from layer to layer.
void return_freed_memory();

/// The largest resident set that this program has had, in bytes (all mapped pages included): VmHWM of /proc/self/status.
std::uint64_t peak_resident_bytes();

/// The folder that holds the running executable.
std::string executable_directory();

}  // namespace layerpress
