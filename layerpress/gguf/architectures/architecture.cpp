#include "layerpress/gguf/architectures/architecture.h"

#include "layerpress/base/text.h"
#include "layerpress/gguf/architectures/families.h"

namespace layerpress::gguf {

const std::vector<Family>& families() {
  static const std::vector<Family> kAll = {
      {"llama", "LlamaForCausalLM", "llama", llama_architecture},
      {"mistral", "MistralForCausalLM", "llama", llama_architecture},
      {"mixtral", "MixtralForCausalLM", "llama", mixtral_architecture},
      {"granite", "GraniteForCausalLM", "granite", granite_architecture},
      {"smollm3", "SmolLM3ForCausalLM", "smollm3", smollm3_architecture},
      {"qwen2", "Qwen2ForCausalLM", "qwen2", qwen2_architecture},
      {"qwen2_moe", "Qwen2MoeForCausalLM", "qwen2moe", qwen2moe_architecture},
      {"qwen3", "Qwen3ForCausalLM", "qwen3", qwen3_architecture},
      {"qwen3_moe", "Qwen3MoeForCausalLM", "qwen3moe", qwen3moe_architecture},
      {"qwen3_next", "Qwen3NextForCausalLM", "qwen3next", qwen3next_architecture},
      {"qwen3_5_text", "Qwen3_5ForCausalLM", "qwen35", qwen35_architecture},
      {"qwen3_5", "Qwen3_5ForCausalLM", "qwen35", qwen35_architecture},
      {"qwen3_5_moe_text", "Qwen3_5MoeForCausalLM", "qwen35moe", qwen35moe_architecture},
      {"qwen3_5_moe", "Qwen3_5MoeForCausalLM", "qwen35moe", qwen35moe_architecture},
      {"qwen2_vl", "Qwen2VLForConditionalGeneration", "qwen2vl", qwen2vl_architecture},
      {"qwen2_vl_text", "Qwen2VLForConditionalGeneration", "qwen2vl", qwen2vl_architecture},
      {"qwen2_5_vl", "Qwen2_5_VLForConditionalGeneration", "qwen2vl", qwen2vl_architecture},
      {"qwen2_5_vl_text", "Qwen2_5_VLForConditionalGeneration", "qwen2vl", qwen2vl_architecture},
      {"qwen3_vl_text", "Qwen3VLForConditionalGeneration", "qwen3vl", qwen3vl_architecture},
      {"qwen3_vl_moe_text", "Qwen3VLMoeForConditionalGeneration", "qwen3vlmoe", qwen3vlmoe_architecture},
      {"gemma2", "Gemma2ForCausalLM", "gemma2", gemma2_architecture},
      {"gemma3_text", "Gemma3ForCausalLM", "gemma3", gemma3_architecture},
      {"gemma3", "Gemma3ForCausalLM", "gemma3", gemma3_architecture},
      {"phi3", "Phi3ForCausalLM", "phi3", phi3_architecture},
      {"olmo2", "Olmo2ForCausalLM", "olmo2", olmo2_architecture},
      {"olmo3", "Olmo3ForCausalLM", "olmo2", olmo2_architecture},
      {"olmoe", "OlmoeForCausalLM", "olmoe", olmoe_architecture},
      {"cohere2", "Cohere2ForCausalLM", "cohere2", cohere2_architecture},
      {"deepseek_v2", "DeepseekV2ForCausalLM", "deepseek2", deepseek2_architecture},
      {"deepseek_v3", "DeepseekV3ForCausalLM", "deepseek2", deepseek2_architecture},
      {"lfm2", "Lfm2ForCausalLM", "lfm2", lfm2_architecture},
      {"glm4", "Glm4ForCausalLM", "glm4", glm4_architecture},
      {"gpt_oss", "GptOssForCausalLM", "gpt-oss", gpt_oss_architecture},
  };
  return kAll;
}

Architecture architecture_for(const Json& config) {
  ModelConfig read(config);
  std::vector<std::string> known;
  for (const Family& family : families()) {
    if (family.model_type == read.model_type()) return family.make(read);
    known.push_back(family.model_type);
  }
  throw CheckpointError("[gguf.architecture] config.json: no GGUF names for model type '{}'; {}", read.model_type(),
                        nearest_or_all(read.model_type(), known));
}

}  // namespace layerpress::gguf
