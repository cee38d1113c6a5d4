#pragma once

#include <cstdint>
#include <string>

namespace layerpress {

/// Cores that this process may use: the affinity mask, cut to the container's CPU quota (cgroup v1 and v2); at least 1.
int usable_cores();

/// Bytes of memory that the machine and the container's limit leave free for this process; 0 when unknown.
std::uint64_t available_memory();

/// The largest resident set this process has had, in bytes (all mapped pages included).
std::uint64_t peak_resident_bytes();

/// The folder that holds the running executable.
std::string executable_directory();

}  // namespace layerpress
