#pragma once

#include <filesystem>
#include <string>
#include <string_view>

namespace layerpress {

/// Throws UsageError naming `option` ("--svg") if can_be_written() is false.
void require_writable(std::string_view option, const std::filesystem::path& path);

/// What to write instead of a folder that does not exist: "did you mean NAME?" for one beside it; "folder PARENT does not exist
/// either"; "" if neither is true.
std::string hint_for_missing_folder(const std::filesystem::path& folder);

}  // namespace layerpress
