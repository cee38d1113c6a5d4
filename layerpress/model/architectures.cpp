#include <fmt/ranges.h>

#include "layerpress/base/text.h"
#include "layerpress/model/architecture.h"
#include "layerpress/model/llama.h"
#include "layerpress/model/mistral.h"
#include "layerpress/model/qwen2.h"
#include "layerpress/model/qwen3.h"

namespace layerpress::model {

const std::vector<Architecture>& architectures() {
  static const std::vector<Architecture> kAll = {
      {"llama", "LlamaForCausalLM", trace_llama},
      {"mistral", "MistralForCausalLM", trace_mistral},
      {"qwen2", "Qwen2ForCausalLM", trace_qwen2},
      {"qwen3", "Qwen3ForCausalLM", trace_qwen3},
  };
  return kAll;
}

TracedModel trace_model(const Json& config) {
  if (!config.is_object()) throw CheckpointError("[model.trace] config.json: not a JSON object");
  std::string class_name;
  if (config.contains("architectures") && !config["architectures"].is_null()) {
    const auto names = json_get<std::vector<std::string>>(config, "architectures", "config.json");
    if (!names.empty()) class_name = names[0];
  }
  const auto model_type = json_get_or<std::string>(config, "model_type", "config.json", "");
  std::vector<std::string> known;
  for (const Architecture& architecture : architectures()) {
    if (class_name.empty() ? architecture.model_type == model_type : architecture.class_name == class_name)
      return architecture.trace(config);
    known.push_back(class_name.empty() ? architecture.model_type : architecture.class_name);
  }
  const std::string name = class_name.empty() ? model_type : class_name;
  const std::string nearest = nearest_name(name, known);
  throw CheckpointError("[model.trace] config.json: architecture '{}' is not supported{}; supported: {}", name,
                        nearest.empty() ? "" : fmt::format(" (nearest: {})", nearest), join(known));
}

void check_weights(const graph::Graph& graph, const checkpoint::Checkpoint& checkpoint,
                   const std::function<bool(const std::string&)>& replaced) {
  for (const graph::Node& node : graph.nodes) {
    for (const graph::WeightUse& use : graph::weights_of(node.operation)) {
      if (replaced(use.name)) continue;
      if (!checkpoint.contains(use.name))
        throw CheckpointError("[model.check] {}: tensor '{}' {} is missing", checkpoint.directory().string(), use.name,
                              fmt::format("{}", use.shape));
      const checkpoint::StoredTensor& stored = checkpoint.spec(use.name);
      if (stored.shape != use.shape)
        throw CheckpointError("[model.check] {}: tensor '{}' has shape {}, config.json implies {}",
                              checkpoint.directory().string(), use.name, stored.shape, use.shape);
      if (stored.dtype != at::kBFloat16 && stored.dtype != at::kHalf && stored.dtype != at::kFloat)
        throw CheckpointError("[model.check] {}: tensor '{}' has dtype {}; weights must be BF16, F16 or F32",
                              checkpoint.directory().string(), use.name, checkpoint::dtype_name(stored.dtype));
    }
  }
}

}  // namespace layerpress::model
