#include "layerpress/base/files/missing_folder.h"

#include <algorithm>
#include <system_error>
#include <vector>

#include "layerpress/base/error.h"
#include "layerpress/base/file.h"
#include "layerpress/base/json.h"
#include "layerpress/base/text.h"

namespace layerpress {
namespace fs = std::filesystem;
namespace {

/// Wherever links lead. Alone, weakly_canonical() leaves the bare name of a file that is not there as it is.
fs::path real_place(const fs::path& path) {
  std::error_code failure;
  return fs::weakly_canonical(fs::absolute(path, failure), failure);
}

void require_place(std::string_view option, const fs::path& path) {
  if (can_be_written(path)) return;
  std::error_code failure;
  const fs::path folder = fs::absolute(path, failure).parent_path();
  if (fs::is_directory(path, failure))
    throw UsageError("[options] {}: {} is a folder; name a file", option, path.string());
  if (!fs::exists(folder, failure)) {
    const std::string hint = hint_for_missing_folder(folder);
    throw UsageError("[options] {}: folder {} does not exist; {}", option, folder.string(),
                     hint.starts_with("did") ? hint : "create it or choose another");
  }
  throw UsageError("[options] {}: {} cannot be written; name a file in a writable folder", option, path.string());
}

bool is_summary(const fs::path& path) {
  constexpr std::uintmax_t kLargest = std::uintmax_t{1} << 30;
  std::error_code failure;
  if (fs::file_size(path, failure) > kLargest || failure) return false;
  const Json found = Json::parse(read_text_file(path), nullptr, /*allow_exceptions=*/false);
  return found.is_object() && found.contains("modules");
}

}  // namespace

void require_writable(std::string_view option, const fs::path& path) {
  std::error_code failure;
  if (const fs::path place = real_place(path);
      fs::is_regular_file(place, failure) && fs::exists(place.parent_path() / "config.json", failure))
    throw UsageError("[options] {}: {} lies beside a config.json, so it may be a model's; name another file", option,
                     path.string());
  require_place(option, path);
}

void require_summary(const fs::path& path) {
  std::error_code failure;
  if (fs::is_regular_file(path, failure) && fs::file_size(path, failure) > 0 && !is_summary(path))
    throw UsageError("[options] --summary: {} is there and is no summary of an earlier run; name another file",
                     path.string());
  require_place("--summary", path);
}

bool lies_in(const fs::path& path, const fs::path& folder) {
  std::error_code failure;
  const fs::path around = fs::canonical(folder, failure);
  if (failure) return false;
  for (fs::path own = real_place(path); own.has_relative_path(); own = own.parent_path())
    if (own == around) return true;
  return false;
}

std::vector<fs::path> real_places(const fs::path& path) {
  constexpr std::size_t kMostEntries = 100'000;
  std::error_code failure;
  const fs::path own = fs::canonical(path, failure);
  if (failure) return {};
  std::vector<fs::path> places = {own};
  if (!fs::is_directory(own, failure)) return places;
  std::size_t seen = 0;
  fs::recursive_directory_iterator entry(own, fs::directory_options::skip_permission_denied, failure);
  for (const fs::recursive_directory_iterator end; !failure && entry != end && seen < kMostEntries; ++seen) {
    std::error_code dangling;
    if (entry->is_symlink(dangling)) {
      const fs::path target = fs::canonical(entry->path(), dangling);
      if (!dangling && fs::is_regular_file(target, dangling)) places.push_back(target);
    }
    entry.increment(failure);
  }
  return places;
}

void require_own_file(std::string_view option, const fs::path& path, const std::vector<NamedPath>& others,
                      const std::vector<NamedPath>& folders) {
  std::error_code failure;
  const fs::path own = real_place(path);
  const auto refuse = [&](const NamedPath& other) {
    throw UsageError("[options] {}: {} would be written over {}; name another file", option, path.string(), other.what);
  };
  for (const NamedPath& other : others)
    if (!other.path.empty() && real_place(other.path) == own) refuse(other);
  for (const NamedPath& other : folders)
    if (fs::is_directory(other.path, failure) && fs::exists(own, failure))
      for (const fs::path& place : real_places(other.path))
        if (lies_in(own, place)) refuse(other);
}

std::string hint_for_missing_folder(const fs::path& folder) {
  constexpr std::size_t kMostEntries = 10'000;
  std::error_code failure;
  const fs::path whole = fs::absolute(folder, failure).lexically_normal();
  const fs::path plain = whole.has_filename() ? whole : whole.parent_path();  // of "x/"
  if (!fs::is_directory(plain.parent_path(), failure))
    return fmt::format("folder {} does not exist either", plain.parent_path().string());
  std::vector<std::string> beside;
  fs::directory_iterator entry(plain.parent_path(), failure);
  for (const fs::directory_iterator end; !failure && entry != end && beside.size() < kMostEntries;
       entry.increment(failure)) {
    std::error_code unreadable;
    const std::string name = entry->path().filename().string();
    if (!name.starts_with('.') && entry->is_directory(unreadable)) beside.push_back(name);
  }
  std::sort(beside.begin(), beside.end());
  return did_you_mean(plain.filename().string(), beside);
}

}  // namespace layerpress
