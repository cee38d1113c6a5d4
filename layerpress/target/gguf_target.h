#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "layerpress/gguf/container/metadata.h"
#include "layerpress/gguf/importance.h"
#include "layerpress/target/target.h"

namespace layerpress::target {

/// What a GGUF says of itself.
struct GgufDescription {
  std::string name;                          ///< of the model
  std::string recipe;                        ///< as YAML
  std::optional<std::uint32_t> file_type{};  ///< of the mixture of types that was asked for
  std::string parts{};                       ///< what the names of a folder's parts begin with; "": one file
  /// The importance file that weighed errors.
  struct Importance {
    std::string file;
    gguf::ImportanceOrigin origin;
    std::size_t entries = 0;
  };
  std::optional<Importance> importance{};
  /// Of the GGUF that the model is read from: its tokenizer and what it says of itself stay.
  std::optional<gguf::Metadata> source{};
};

/// A GGUF file, or a folder with its parts, for llama.cpp and what stands on it. Reads config.json's facts and the tokenizer files of
/// `model` now. Throws CheckpointError for architectures and tokenizers that llama.cpp or Layerpress does not know.
std::unique_ptr<Target> gguf_target(const checkpoint::Checkpoint& model, const GgufDescription& description);

}  // namespace layerpress::target
