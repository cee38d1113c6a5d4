#pragma once

#include "layerpress/gguf/architectures/architecture.h"
#include "layerpress/gguf/architectures/model_config.h"

namespace layerpress::gguf {

/// A model as a GGUF describes it.
struct ReadArchitecture {
  Json config;  ///< config.json's entries, without those of tokenizer and dtype
  Architecture architecture;
};

/// Makes the config.json whose keys are the file's. Throws CheckpointError naming an architecture that is not known, a key that is
/// missing, and a key whose value no config.json gives or that the family does not know. The text part of a model for images is read
/// as the model of text alone that computes the same.
ReadArchitecture read_architecture(const FileFacts& given);

/// What the tensors of a GGUF become: the tensors of a checkpoint by name, each with the tensors of the file that it is made of.
struct PlacedTensor {
  std::string tensor;  ///< in the file
  TensorPlace place;
};
using PlacedTensors = std::map<std::string, std::vector<PlacedTensor>>;

/// Throws CheckpointError naming a tensor that the family does not have, or one of which parts are missing.
PlacedTensors checkpoint_tensors(const ReadArchitecture& model, const FileFacts& file);

}  // namespace layerpress::gguf
