#pragma once

#include <filesystem>
#include <optional>
#include <string>

namespace layerpress::checkpoint {

/// Resolves the name of a model to a folder. An existing directory, or a file *.gguf, is returned unchanged; a directory without
/// config.json that holds one GGUF file is that file, or its first part. `org/name` (or `name`, optionally `org/name@revision`) is
/// looked up in the local Hugging Face cache (HF_HUB_CACHE, else HF_HOME/hub, else XDG_CACHE_HOME/huggingface/hub, else
/// ~/.cache/huggingface/hub; refs/main names the snapshot). Downloads nothing. Throws CheckpointError; for an id that is not in the
/// cache the message ends with the exact `hf download ...` command.
std::filesystem::path locate_model(const std::string& model);

/// The parts of `org/name@revision`; `revision` is empty if none is given.
struct HubModel {
  std::string id;
  std::string revision;
};

/// Nothing if `model` is no id of the hub.
std::optional<HubModel> parse_hub_model(const std::string& model);

}  // namespace layerpress::checkpoint
