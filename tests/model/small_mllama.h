#pragma once

#include "layerpress/base/json.h"

namespace layerpress::test {

/// config.json of a small Llama-3.2-Vision: layers 1 and 3 of five attend to images.
inline Json small_mllama_config() {
  return {{"architectures", {"MllamaForConditionalGeneration"}},
          {"model_type", "mllama"},
          {"text_config",
           {{"hidden_size", 64},
            {"intermediate_size", 96},
            {"num_hidden_layers", 5},
            {"num_attention_heads", 4},
            {"num_key_value_heads", 2},
            {"vocab_size", 120},
            {"cross_attention_layers", {1, 3}}}},
          {"vision_config",
           {{"hidden_size", 32},
            {"intermediate_size", 48},
            {"num_hidden_layers", 3},
            {"num_global_layers", 2},
            {"attention_heads", 2},
            {"vision_output_dim", 96},
            {"image_size", 28},
            {"patch_size", 7},
            {"intermediate_layers_indices", {0, 2}}}}};
}

}  // namespace layerpress::test
