#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace layerpress {

/// The folders of this process's control group: its own first, then its parents up to the highest visible one.
/// `controller` names a controller of cgroup v1 ("memory"); "" means the unified tree of v2. Empty if there is none.
/// `proc` and `groups` are the roots, normally /proc and /sys/fs/cgroup.
std::vector<std::filesystem::path> control_group_levels(const std::filesystem::path& proc,
                                                        const std::filesystem::path& groups,
                                                        std::string_view controller);

/// The first line of a small file, or "" if it cannot be read.
std::string first_line(const std::filesystem::path& path);

/// The number that `text` begins with, or `otherwise` if there is none or `text` is "max".
double number_or(const std::string& text, double otherwise);

}  // namespace layerpress
