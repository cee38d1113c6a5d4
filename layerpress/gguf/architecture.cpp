#include "layerpress/gguf/architecture.h"

#include "layerpress/base/suggestions.h"
#include "layerpress/gguf/families.h"

namespace layerpress::gguf {
namespace {

struct Family {
  std::string model_type;
  Architecture (*make)(const ModelConfig& config);
};

const std::vector<Family>& families() {
  static const std::vector<Family> kAll = {
      {"llama", llama_architecture},
      {"mistral", llama_architecture},
      {"mixtral", mixtral_architecture},
      {"granite", granite_architecture},
      {"smollm3", smollm3_architecture},
      {"qwen2", qwen2_architecture},
      {"qwen2_moe", qwen2moe_architecture},
      {"qwen3", qwen3_architecture},
      {"qwen3_moe", qwen3moe_architecture},
      {"gemma2", gemma2_architecture},
      {"gemma3_text", gemma3_architecture},
      {"gemma3", gemma3_architecture},
      {"phi3", phi3_architecture},
      {"olmo2", olmo2_architecture},
      {"olmo3", olmo2_architecture},
      {"olmoe", olmoe_architecture},
      {"cohere2", cohere2_architecture},
      {"deepseek_v2", deepseek2_architecture},
      {"deepseek_v3", deepseek2_architecture},
      {"lfm2", lfm2_architecture},
      {"glm4", glm4_architecture},
      {"gpt_oss", gpt_oss_architecture},
  };
  return kAll;
}

}  // namespace

std::vector<std::string> known_model_types() {
  std::vector<std::string> names;
  for (const Family& family : families()) names.push_back(family.model_type);
  return names;
}

Architecture architecture_for(const Json& config) {
  const ModelConfig read(config);
  for (const Family& family : families())
    if (family.model_type == read.model_type()) return family.make(read);
  throw CheckpointError("[gguf.architecture] config.json: no GGUF names for model type '{}'; {}", read.model_type(),
                        nearest_or_all(read.model_type(), known_model_types()));
}

}  // namespace layerpress::gguf
