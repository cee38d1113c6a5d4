#include "layerpress/run/compression/model_name.h"

#include <algorithm>
#include <optional>
#include <string_view>

#include "layerpress/base/error.h"
#include "layerpress/checkpoint/model_location.h"

namespace layerpress::run {
namespace {

namespace fs = std::filesystem;

/// The folder of a model, or nothing for one that is not on this machine.
std::optional<fs::path> folder_of(const std::string& model) {
  try {
    return checkpoint::locate_model(model);
  } catch (const CheckpointError&) {
    return std::nullopt;
  }
}

/// What `.../models--org--name/snapshots/commit` says. The links of a cache lead to blobs, never to other folders.
ModelName cached_name(const fs::path& folder) {
  constexpr std::string_view kPrefix = "models--";
  ModelName name;
  for (auto part = folder.begin(); part != folder.end(); ++part) {
    std::string id = part->string();
    if (!id.starts_with(kPrefix)) continue;
    id.erase(0, kPrefix.size());
    if (const std::size_t end = id.find("--"); end != std::string::npos)
      id = id.substr(0, end) + "/" + id.substr(end + 2);
    name.shown = name.hub_id = id;
    const auto next = std::next(part);
    if (next != folder.end() && *next == "snapshots" && std::next(next) != folder.end())
      name.revision = std::next(next)->string();
  }
  return name;
}

}  // namespace

std::string last_part(const fs::path& path) {
  const fs::path normal = path.lexically_normal();
  return (normal.has_filename() ? normal : normal.parent_path()).filename().string();
}

ModelName name_of_model(const std::string& model) {
  const std::optional<fs::path> folder = folder_of(model);
  if (!folder) return {.shown = last_part(model)};
  std::error_code failure;
  fs::path canonical = fs::weakly_canonical(*folder, failure);
  if (failure) canonical = *folder;
  ModelName name = cached_name(canonical);
  if (name.shown.empty()) name.shown = last_part(canonical);
  return name;
}

}  // namespace layerpress::run
