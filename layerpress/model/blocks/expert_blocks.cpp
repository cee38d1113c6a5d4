#include "layerpress/model/blocks/expert_blocks.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>
#include <variant>

#include "layerpress/base/text.h"

namespace layerpress::model {

using graph::Symbol;
using graph::Tracer;

namespace {

Symbol shared_expert(Tracer& tracer, const DecoderConfig& config, const ExpertBlock& block, Symbol x) {
  Symbol output;
  {
    const auto scope = tracer.module(block.shared_name, block.shared_class_name);
    const Symbol gate = tracer.linear("gate_proj", x, block.shared_intermediate_size);
    const Symbol up = tracer.linear("up_proj", x, block.shared_intermediate_size);
    output = tracer.linear("down_proj", tracer.gated_activation(config.hidden_act, gate, up), config.hidden_size);
  }
  if (!block.shared_gate) return output;
  return tracer.gate(tracer.linear(block.shared_name + "_gate", x, 1, {.class_name = "Gate"}), output);
}

/// With as many experts as this layer has.
graph::Route route_of_layer(const DecoderConfig& config, graph::Route route, std::int64_t layer) {
  if (config.layer_experts.empty()) return route;
  route.experts = config.layer_experts.at(static_cast<std::size_t>(layer));
  if (route.experts < route.top_k || route.groups != 1)
    throw CheckpointError("[model.config] {}: {}: layer {} has {} experts, of which each token takes {} in {} groups",
                          kConfigFile, kExpertCountsKey, layer, route.experts, route.top_k, route.groups);
  return route;
}

}  // namespace

Symbol expert_block(Tracer& tracer, const DecoderConfig& config, const ExpertBlock& block, std::int64_t layer,
                    Symbol x) {
  const auto scope = tracer.module(block.name, block.class_name);
  const graph::Route route = route_of_layer(config, block.route, layer);
  const Symbol logits = tracer.linear("gate", x, route.experts, {.class_name = block.router_class_name});
  const Symbol routing = tracer.route(logits, route);
  const Symbol routed =
      tracer.experts("experts", x, logits, routing, block.intermediate_size, config.hidden_act, block.experts);
  if (block.shared_intermediate_size == 0) return routed;
  return tracer.add(routed, shared_expert(tracer, config, block, x));
}

ExpertConfig parse_expert_config(const Json& config, const ExpertConfig& defaults, const ExpertKeys& keys) {
  ExpertConfig parsed;
  // transformers reads either key and writes num_local_experts.
  const char* key = json_has(config, keys.experts) ? keys.experts : "num_local_experts";
  parsed.experts = positive_number(config, key, kMostFeatures, defaults.experts);
  parsed.top_k = positive_number(config, keys.top_k, kMostFeatures, defaults.top_k);
  parsed.intermediate_size = positive_number(config, keys.intermediate_size, kMostFeatures, defaults.intermediate_size);
  if (parsed.experts > kMostExperts || parsed.top_k > parsed.experts)
    throw CheckpointError("[model.config] config.json: '{}' is {} of {} experts", keys.top_k, parsed.top_k,
                          parsed.experts);
  return parsed;
}

ExpertBlock sparse_block(const std::string& class_prefix, const ExpertConfig& experts) {
  ExpertBlock block;
  block.class_name = class_prefix + "SparseMoeBlock";
  block.router_class_name = class_prefix + "TopKRouter";
  block.experts.class_name = class_prefix + "MLP";
  block.intermediate_size = experts.intermediate_size;
  block.route.experts = experts.experts;
  block.route.top_k = experts.top_k;
  return block;
}

TracedModel expert_language_model(const ExpertDecoder& decoder, const Json& raw_config,
                                  const std::function<SelfAttention(std::int64_t)>& attention) {
  const std::string& prefix = decoder.class_prefix;
  const DecoderConfig& config = decoder.config;
  return causal_language_model(prefix, config, raw_config, [&](Tracer& tracer, std::int64_t layer, Symbol x) {
    if (!decoder.sparse.empty() && !decoder.sparse[layer])
      return pre_norm_layer(tracer, config, prefix, attention(layer), /*mlp_bias=*/false, x);
    return pre_norm_layer(
        tracer, config, prefix, [&](Symbol input) { return self_attention(tracer, config, attention(layer), input); },
        [&](Symbol input) { return expert_block(tracer, config, decoder.block, layer, input); }, x);
  });
}

std::vector<bool> sparse_layers(const Json& config, std::int64_t num_layers) {
  const std::int64_t step = positive_number(config, "decoder_sparse_step", kMostFeatures, 1);
  std::vector<bool> sparse(static_cast<std::size_t>(num_layers));
  for (std::int64_t layer = 0; layer < num_layers; ++layer) sparse[layer] = (layer + 1) % step == 0;
  for (const std::int64_t layer :
       json_get_or<std::vector<std::int64_t>>(config, "mlp_only_layers", kConfigFile, std::vector<std::int64_t>()))
    if (layer >= 0 && layer < num_layers) sparse[layer] = false;
  return sparse;
}

namespace {

struct ExpertWeights {
  const graph::Expert* operation;
  std::string gate, up;  // no gate: ""
};

/// Names of the weights that an expert's node depends on.
ExpertWeights weights_of_expert(const graph::Graph& graph, const graph::Node& expert) {
  const auto made_by = [&](graph::ValueId value) -> const graph::Node& {
    return graph.nodes[graph.values[value].producer];
  };
  const graph::Node& activation = made_by(made_by(expert.inputs[0]).inputs[0]);
  const auto weight = [&](graph::ValueId value) { return std::get<graph::Linear>(made_by(value).operation).weight; };
  return {&std::get<graph::Expert>(expert.operation), activation.inputs.size() > 1 ? weight(activation.inputs[0]) : "",
          weight(activation.inputs.back())};
}

/// "gate_proj" of "model.layers.0.mlp.experts.0.gate_proj.weight".
std::string leaf_name(const std::string& weight) { return last_part(parent_name(weight)); }

}  // namespace

std::string list_of_experts(const StackedTensor& stacked) {
  const std::string& weight = stacked.members.front().front();  // list.expert.linear.weight
  return parent_name(parent_name(parent_name(weight)));
}

void describe_experts(TracedModel& model) {
  const graph::Graph& graph = model.graph;
  std::map<graph::ModuleId, std::vector<ExpertWeights>> by_list;
  for (const graph::Node& node : graph.nodes)
    if (std::holds_alternative<graph::Expert>(node.operation))
      by_list[graph.modules[node.module].parent].push_back(weights_of_expert(graph, node));
  std::set<std::string> stacked;
  for (const std::vector<StackedTensor>& layer : model.stacked_tensors) stacked.insert(list_of_experts(layer.front()));
  for (const auto& [module, experts] : by_list) {
    const std::string& list = graph.modules[module].name;
    model.uniform_modules.push_back(list);
    const bool gated = !experts.front().gate.empty();
    if (gated && model.uniform_modules.size() == 1)
      model.fused_modules.push_back({leaf_name(experts.front().gate), leaf_name(experts.front().up)});
    if (stacked.count(list) != 0) continue;
    const auto count = static_cast<std::int64_t>(experts.size());
    const graph::Expert& first = *experts.front().operation;
    const std::int64_t features = first.features, inner = first.intermediate;
    checkpoint::FusedTensor gate_up{
        list + (gated ? ".gate_up_proj" : ".up_proj"), {count, (gated ? 2 : 1) * inner, features}, {}};
    checkpoint::FusedTensor down{list + ".down_proj", {count, features, inner}, {}};
    for (const ExpertWeights& expert : experts) {
      if (gated) gate_up.members.push_back({expert.gate, {inner, features}});
      gate_up.members.push_back({expert.up, {inner, features}});
      down.members.push_back({expert.operation->down, {features, inner}});
    }
    model.fused_tensors.push_back(std::move(gate_up));
    model.fused_tensors.push_back(std::move(down));
  }
}

}  // namespace layerpress::model
