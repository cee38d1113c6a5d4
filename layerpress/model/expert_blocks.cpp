#include "layerpress/model/expert_blocks.h"

#include <algorithm>
#include <map>

namespace layerpress::model {

using graph::Symbol;
using graph::Tracer;

namespace {

constexpr const char* kWhere = "config.json";

Symbol shared_expert(Tracer& tracer, const DecoderConfig& config, const ExpertBlock& block, Symbol x) {
  Symbol output;
  {
    const auto scope = tracer.module(block.shared_name, block.shared_class_name);
    const Symbol gate = tracer.linear("gate_proj", x, block.shared_intermediate_size);
    const Symbol up = tracer.linear("up_proj", x, block.shared_intermediate_size);
    output = tracer.linear("down_proj", tracer.gated_activation(config.hidden_act, gate, up), config.hidden_size);
  }
  if (!block.shared_gate) return output;
  const Tracer::LinearOptions gate{.bias = false, .tied_weight = "", .class_name = "Gate"};
  return tracer.gate(tracer.linear(block.shared_name + "_gate", x, 1, gate), output);
}

std::int64_t positive_or(const Json& config, const char* key, std::int64_t otherwise) {
  constexpr std::int64_t kMost = 1 << 24;
  const auto value = json_get_or<std::int64_t>(config, key, kWhere, otherwise);
  if (value <= 0 || value > kMost)
    throw CheckpointError("[model.config] config.json: '{}' is {}, expected 1 to {}", key, value, kMost);
  return value;
}

}  // namespace

Symbol expert_block(Tracer& tracer, const DecoderConfig& config, const ExpertBlock& block, Symbol x) {
  const auto scope = tracer.module(block.name, block.class_name);
  const Tracer::LinearOptions router{.bias = false, .tied_weight = "", .class_name = block.router_class_name};
  const Symbol logits = tracer.linear("gate", x, block.route.experts, router);
  const Symbol routing = tracer.route(logits, block.route);
  const Symbol routed =
      tracer.experts("experts", x, logits, routing, block.intermediate_size, config.hidden_act, block.experts);
  if (block.shared_intermediate_size == 0) return routed;
  return tracer.add(routed, shared_expert(tracer, config, block, x));
}

ExpertConfig parse_expert_config(const Json& config, const ExpertConfig& defaults, const ExpertKeys& keys) {
  constexpr std::int64_t kMostExperts = 65'536;
  ExpertConfig parsed;
  // transformers reads either of the two, and writes the second.
  const bool has_own_key = config.contains(keys.experts) && !config[keys.experts].is_null();
  parsed.experts = positive_or(config, has_own_key ? keys.experts : "num_local_experts", defaults.experts);
  parsed.top_k = positive_or(config, keys.top_k, defaults.top_k);
  parsed.intermediate_size = positive_or(config, keys.intermediate_size, defaults.intermediate_size);
  if (parsed.experts > kMostExperts || parsed.top_k > parsed.experts)
    throw CheckpointError("[model.config] config.json: '{}' is {} of {} experts", keys.top_k, parsed.top_k,
                          parsed.experts);
  return parsed;
}

std::vector<bool> sparse_layers(const Json& config, std::int64_t num_layers) {
  const std::int64_t step = positive_or(config, "decoder_sparse_step", 1);
  std::vector<bool> sparse(static_cast<std::size_t>(num_layers));
  for (std::int64_t layer = 0; layer < num_layers; ++layer) sparse[layer] = (layer + 1) % step == 0;
  for (const std::int64_t layer :
       json_get_or<std::vector<std::int64_t>>(config, "mlp_only_layers", kWhere, std::vector<std::int64_t>()))
    if (layer >= 0 && layer < num_layers) sparse[layer] = false;
  return sparse;
}

void describe_experts(TracedModel& model) {
  const graph::Graph& graph = model.graph;
  std::map<graph::ModuleId, std::vector<const graph::Expert*>> by_list;
  for (const graph::Node& node : graph.nodes)
    if (const auto* expert = std::get_if<graph::Expert>(&node.operation))
      by_list[graph.modules[node.module].parent].push_back(expert);
  for (const auto& [module, experts] : by_list) {
    const std::string& list = graph.modules[module].name;
    model.uniform_modules.push_back(list);
    const auto count = static_cast<std::int64_t>(experts.size());
    const std::int64_t features = experts.front()->features, inner = experts.front()->intermediate;
    checkpoint::FusedTensor gate_up{list + ".gate_up_proj", {count, 2 * inner, features}, {}};
    checkpoint::FusedTensor down{list + ".down_proj", {count, features, inner}, {}};
    for (const graph::Expert* expert : experts) {
      gate_up.members.push_back({expert->gate, {inner, features}});
      gate_up.members.push_back({expert->up, {inner, features}});
      down.members.push_back({expert->down, {features, inner}});
    }
    model.fused_tensors.push_back(std::move(gate_up));
    model.fused_tensors.push_back(std::move(down));
  }
}

}  // namespace layerpress::model
