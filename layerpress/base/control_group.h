#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace layerpress {

/// Folders of this process's control group, its own first, then its parents up to the highest that can be seen here.
/// `controller` names one of cgroup v1 ("memory"); "" asks for the unified tree of v2. Empty when there is none.
/// `proc` and `groups` are the roots, /proc and /sys/fs/cgroup.
std::vector<std::filesystem::path> control_group_levels(const std::filesystem::path& proc,
                                                        const std::filesystem::path& groups,
                                                        std::string_view controller);

/// The first line of a small file, "" when it cannot be read.
std::string first_line(const std::filesystem::path& path);

/// The number that `text` begins with; `otherwise` for none and for "max".
double number_or(const std::string& text, double otherwise);

}  // namespace layerpress
