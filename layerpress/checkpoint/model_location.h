#pragma once

#include <filesystem>
#include <string>

namespace layerpress::checkpoint {

/// Turns what a user calls a model into a folder: an existing directory is itself; `org/name` (or `name`, optionally
/// `org/name@revision`) is looked up in the local Hugging Face cache (HF_HUB_CACHE, else HF_HOME/hub, else
/// XDG_CACHE_HOME/huggingface/hub, else ~/.cache/huggingface/hub; refs/main names the snapshot). Downloads nothing.
/// Throws CheckpointError; for an id that is not in the cache the message ends with the exact `hf download ...` line.
std::filesystem::path locate_model(const std::string& model);

}  // namespace layerpress::checkpoint
