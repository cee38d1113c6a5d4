#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace layerpress {

/// Throws UsageError naming `option` ("--svg") if can_be_written() is false, or if the file is there beside a config.json: it may be a
/// model's.
void require_writable(std::string_view option, const std::filesystem::path& path);

/// Throws UsageError naming --summary if can_be_written() is false, or if another file than an earlier run's summary is there.
void require_summary(const std::filesystem::path& path);

/// Whether `path`, which need not exist, is `folder` or would lie in it, wherever links lead. False for a folder that does not exist.
bool lies_in(const std::filesystem::path& path, const std::filesystem::path& folder);

/// Where `path` leads and, if it is a folder, where the links to files in it lead, as those of a download cache do. Up to 100,000 entries are
/// looked at.
std::vector<std::filesystem::path> real_places(const std::filesystem::path& path);

/// Something that a run reads or makes: what it is, for messages, and where; "": it is not there.
struct NamedPath {
  std::string what;
  std::filesystem::path path;
};

/// Throws UsageError if the file at `path`, which `option` names, is one of `others`, or lies in one of `folders` or where
/// a link in it leads.
void require_own_file(std::string_view option, const std::filesystem::path& path, const std::vector<NamedPath>& others,
                      const std::vector<NamedPath>& folders);

/// What to write instead of a folder that does not exist: "did you mean NAME?" for one beside it; "folder PARENT does not exist
/// either"; "" if neither is true.
std::string hint_for_missing_folder(const std::filesystem::path& folder);

}  // namespace layerpress
