#pragma once

#include <string>
#include <vector>

#include "layerpress/gguf/architectures/architecture.h"
#include "layerpress/gguf/architectures/model_config.h"

namespace layerpress::gguf {

struct Family {
  std::string model_type;
  std::string class_name;  ///< in config.json's architectures
  std::string name;        ///< general.architecture
  Architecture (*make)(ModelConfig& config);
};

/// All families, by model type.
const std::vector<Family>& families();

Architecture llama_architecture(ModelConfig& config);  ///< Llama, Mistral, SmolLM2, TinyLlama
Architecture mixtral_architecture(ModelConfig& config);
Architecture granite_architecture(ModelConfig& config);
Architecture smollm3_architecture(ModelConfig& config);
Architecture qwen2_architecture(ModelConfig& config);
Architecture qwen2moe_architecture(ModelConfig& config);
Architecture qwen3_architecture(ModelConfig& config);
Architecture qwen3moe_architecture(ModelConfig& config);
Architecture qwen3next_architecture(ModelConfig& config);
Architecture qwen2vl_architecture(ModelConfig& config);  ///< Qwen 2 and 2.5 VL
Architecture qwen3vl_architecture(ModelConfig& config);
Architecture qwen3vlmoe_architecture(ModelConfig& config);
Architecture qwen35_architecture(ModelConfig& config);
Architecture qwen35moe_architecture(ModelConfig& config);
Architecture gemma2_architecture(ModelConfig& config);
Architecture gemma3_architecture(ModelConfig& config);
Architecture phi3_architecture(ModelConfig& config);
Architecture olmo2_architecture(ModelConfig& config);
Architecture olmoe_architecture(ModelConfig& config);
Architecture cohere2_architecture(ModelConfig& config);
Architecture deepseek2_architecture(ModelConfig& config);
Architecture lfm2_architecture(ModelConfig& config);
Architecture glm4_architecture(ModelConfig& config);
Architecture gpt_oss_architecture(ModelConfig& config);

}  // namespace layerpress::gguf
