#pragma once

#include "layerpress/gguf/architecture.h"
#include "layerpress/gguf/model_config.h"

namespace layerpress::gguf {

Architecture llama_architecture(const ModelConfig& config);  ///< Llama, Mistral, SmolLM2, TinyLlama
Architecture mixtral_architecture(const ModelConfig& config);
Architecture granite_architecture(const ModelConfig& config);
Architecture smollm3_architecture(const ModelConfig& config);
Architecture qwen2_architecture(const ModelConfig& config);
Architecture qwen2moe_architecture(const ModelConfig& config);
Architecture qwen3_architecture(const ModelConfig& config);
Architecture qwen3moe_architecture(const ModelConfig& config);
Architecture gemma2_architecture(const ModelConfig& config);
Architecture gemma3_architecture(const ModelConfig& config);
Architecture phi3_architecture(const ModelConfig& config);
Architecture olmo2_architecture(const ModelConfig& config);
Architecture olmoe_architecture(const ModelConfig& config);
Architecture cohere2_architecture(const ModelConfig& config);
Architecture deepseek2_architecture(const ModelConfig& config);
Architecture lfm2_architecture(const ModelConfig& config);
Architecture glm4_architecture(const ModelConfig& config);
Architecture gpt_oss_architecture(const ModelConfig& config);

}  // namespace layerpress::gguf
