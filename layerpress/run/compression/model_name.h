#pragma once

#include <filesystem>
#include <string>

namespace layerpress::run {

/// How people call a model: without folders of this machine.
struct ModelName {
  std::string shown;       ///< the id of the hub, or the last folder of the path
  std::string hub_id{};    ///< `org/name`; empty unless the model is known to come from the hub
  std::string revision{};  ///< the commit of the hub that was read; empty if unknown
};

/// `model` as options name it: a folder, an id of the hub, or, for a model in memory, any word. A model comes from the hub if
/// its files are in the hub's local cache; the name of another folder is no id.
ModelName name_of_model(const std::string& model);

/// The last part of a path, also where it ends with a slash.
std::string last_part(const std::filesystem::path& path);

}  // namespace layerpress::run
