#pragma once

#include <filesystem>
#include <string>

#include "layerpress/base/progress.h"

namespace layerpress::setup {

/// Fetches what the local cache lacks of `model` (`org/name` or `org/name@revision`): config, tokenizer, processor and
/// safetensors. Does nothing for a directory, or for what is no id. Runs the helper hub.py, which uses the hub's own
/// client. Throws IoError; what has arrived by then is kept.
void download_model(const std::string& model, const RunControl& control);

/// Throws UsageError if `repository` is not `org/name`, and IoError if the hub does not know the user.
void check_upload(const std::string& repository, const RunControl& control);

/// Uploads a folder, into a new repository if there is none; returns its address. Throws IoError.
std::string upload_folder(const std::filesystem::path& folder, const std::string& repository, bool make_public,
                          const RunControl& control);

}  // namespace layerpress::setup
