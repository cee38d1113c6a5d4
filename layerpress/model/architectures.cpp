#include <c10/core/ScalarType.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "layerpress/base/text.h"
#include "layerpress/model/blocks/architecture.h"
#include "layerpress/model/blocks/expert_blocks.h"
#include "layerpress/model/families/families.h"

namespace layerpress::model {

const std::vector<Architecture>& architectures() {
  static const std::vector<Architecture> kAll = {
      {"llama", "LlamaForCausalLM", trace_llama, "pre-norm decoder with grouped heads and a gated MLP"},
      {"mistral", "MistralForCausalLM", trace_mistral, "sliding window where config.json has one"},
      {"mixtral", "MixtralForCausalLM", trace_mixtral, "mixture of experts, weights of the chosen ones add up to 1"},
      {"olmoe", "OlmoeForCausalLM", trace_olmoe, "mixture of experts, norms over whole rows of q and k"},
      {"mllama", "MllamaForConditionalGeneration", trace_mllama, "Llama 3.2 Vision: text layers that attend to images"},
      {"qwen2", "Qwen2ForCausalLM", trace_qwen2, "biases on q, k and v"},
      {"qwen2_moe", "Qwen2MoeForCausalLM", trace_qwen2_moe, "mixture of experts beside a shared, gated one"},
      {"qwen3", "Qwen3ForCausalLM", trace_qwen3, "norms on every head of q and k"},
      {"qwen3_moe", "Qwen3MoeForCausalLM", trace_qwen3_moe, "mixture of experts, norms on every head of q and k"},
      {"gemma2", "Gemma2ForCausalLM", trace_gemma2, "norms around attention and MLP, soft caps, windows"},
      {"gemma3_text", "Gemma3ForCausalLM", trace_gemma3, "norms around attention and MLP, of q and k, windows"},
      {"phi3", "Phi3ForCausalLM", trace_phi3, "q, k, v in one weight and gate, up in another"},
      {"olmo2", "Olmo2ForCausalLM", trace_olmo2, "norms behind attention and MLP, over whole rows of q and k"},
      {"smollm3", "SmolLM3ForCausalLM", trace_smollm3, "no positions in every fourth layer"},
      {"granite", "GraniteForCausalLM", trace_granite, "multipliers on embeddings, scores, branches, logits"},
      {"cohere2", "Cohere2ForCausalLM", trace_cohere2, "attention and MLP side by side, windows"},
      {"deepseek_v2", "DeepseekV2ForCausalLM", trace_deepseek_v2, "latent attention, experts beside shared ones"},
      {"deepseek_v3", "DeepseekV3ForCausalLM", trace_deepseek_v3, "latent attention, experts chosen in groups"},
  };
  return kAll;
}

namespace {

/// The first entry of config.json's architectures, or "".
std::string class_name_of(const Json& config) {
  if (!json_has(config, "architectures")) return "";
  const auto names = json_get<std::vector<std::string>>(config, "architectures", "config.json");
  return names.empty() ? "" : names[0];
}

}  // namespace

bool is_built_in(const Json& config) {
  if (!config.is_object()) return false;
  const std::string class_name = class_name_of(config);
  const auto model_type = json_get_or<std::string>(config, "model_type", "config.json", "");
  return std::any_of(architectures().begin(), architectures().end(), [&](const Architecture& known) {
    return class_name.empty() ? known.model_type == model_type : known.class_name == class_name;
  });
}

TracedModel trace_model(const Json& config) {
  if (!config.is_object()) throw CheckpointError("[model.trace] config.json: not a JSON object");
  const std::string class_name = class_name_of(config);
  const auto model_type = json_get_or<std::string>(config, "model_type", "config.json", "");
  std::vector<std::string> known;
  for (const Architecture& architecture : architectures()) {
    if (class_name.empty() ? architecture.model_type == model_type : architecture.class_name == class_name) {
      TracedModel model = architecture.trace(config);
      describe_experts(model);
      return model;
    }
    known.push_back(class_name.empty() ? architecture.model_type : architecture.class_name);
  }
  const std::string name = class_name.empty() ? model_type : class_name;
  if (name.empty())
    throw CheckpointError(
        "[model.trace] config.json: neither 'architectures' nor 'model_type' says what the model is; supported: {}",
        join(known));
  const std::string nearest = nearest_name(name, known);
  throw CheckpointError("[model.trace] config.json: {} '{}' is not supported{}; supported: {}",
                        class_name.empty() ? "model_type" : "architecture", name,
                        nearest.empty() ? "" : fmt::format(" (nearest: {})", nearest), join(known));
}

void check_weights(const graph::Graph& graph, const checkpoint::Checkpoint& checkpoint) {
  const std::string where = checkpoint.location().empty() ? "the model in memory" : checkpoint.location().string();
  for (const graph::Node& node : graph.nodes) {
    for (const graph::WeightUse& use : graph::weights_of(node.operation)) {
      if (!checkpoint.contains(use.name))
        throw CheckpointError(
            "[model.check] {}: tensor '{}' {} is missing{}", where, use.name, fmt::format("{}", use.shape),
            checkpoint.location().empty() ? "; merge adapters (merge_and_unload()), remove parametrizations "
                                            "and give modules that share a weight one each before, or "
                                            "pass the model's folder"
                                          : "");
      const checkpoint::StoredTensor& stored = checkpoint.spec(use.name);
      if (stored.shape != use.shape)
        throw CheckpointError("[model.check] {}: tensor '{}' has shape {}, config.json implies {}", where, use.name,
                              stored.shape, use.shape);
      // Imported operators read tables, too: of integers and booleans.
      const bool is_table = std::holds_alternative<graph::Aten>(node.operation) &&
                            c10::isIntegralType(stored.dtype, /*includeBool=*/true);
      if (!is_table && stored.dtype != at::kBFloat16 && stored.dtype != at::kHalf && stored.dtype != at::kFloat)
        throw CheckpointError("[model.check] {}: tensor '{}' has dtype {}; weights must be BF16, F16 or F32", where,
                              use.name, checkpoint::dtype_name(stored.dtype));
    }
  }
}

std::vector<FusedModules> fused_with(const TracedModel& model, const std::string& module) {
  std::vector<FusedModules> found;
  for (const std::vector<std::string>& family : model.fused_modules)
    for (const std::string& own : family) {
      if (!module.ends_with(own)) continue;
      const std::string prefix = module.substr(0, module.size() - own.size());
      found.push_back({family, {}});
      for (const std::string& member : family) found.back().names.push_back(prefix + member);
    }
  return found;
}

}  // namespace layerpress::model
