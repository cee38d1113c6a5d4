#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "layerpress/base/json.h"
#include "layerpress/gguf/architectures/tensor_names.h"
#include "layerpress/gguf/container/metadata.h"

namespace layerpress::gguf {

/// A float tensor [values] of a GGUF that no tensor of the checkpoint goes to.
struct MadeTensor {
  std::string name;
  std::vector<float> values;
};

/// A model as llama.cpp knows it.
struct Architecture {
  std::string name;  ///< general.architecture
  /// general.architecture and general.type, and all keys of the architecture. Names, file type and tokenizer are the writer's.
  Metadata metadata;
  std::vector<MadeTensor> made;
  TensorNames names;
  std::int64_t layers = 0;
  /// Of the first layer, as the choice of block types wants it: 0 key-value heads in a layer without attention.
  std::int64_t heads = 0, kv_heads = 0;
  std::int64_t experts = 0;
  std::int64_t vocab_size = 0;
  std::vector<std::string> notes = {};  ///< what llama.cpp does otherwise than the model; for people

  /// Where a checkpoint's tensor goes. Throws CheckpointError if llama.cpp has no place for it.
  Placement place(const std::string& tensor) const { return names.find(tensor); }
};

/// The architecture of a config.json; of one with several modalities the language model's. Throws CheckpointError for a model type
/// that llama.cpp or this table does not know, naming those that it knows, and for values that llama.cpp does not compute.
Architecture architecture_for(const Json& config);

}  // namespace layerpress::gguf
