#include "layerpress/importer/expert_lowering.h"

#include <algorithm>
#include <set>
#include <tuple>

#include "layerpress/base/text.h"
#include "layerpress/importer/expert_gate.h"

namespace layerpress::importer {
namespace {

enum Argument : std::size_t {
  kX,
  kIndex,
  kWeights,
  kGateUp,
  kGateUpBias,
  kDown,
  kDownBias,
  kTransposed,
  kGated,
  kFunction
};

bool is_gated(const ExportedNode& node) { return node.arguments.at(kGated) == Json(true); }

/// What stands between the projections of an expert; nothing if it cannot be a node.
std::optional<graph::Operation> gate_of(const ExportedGraph& graph, const ExportedNode& node, std::int64_t inner) {
  static const std::set<std::string> kFunctions = {"silu", "gelu", "gelu_tanh"};
  if (!node.arguments[kFunction].is_string()) return std::nullopt;
  const auto function = node.arguments[kFunction].get<std::string>();
  if (is_gated(node) && kFunctions.count(function) != 0) return graph::GatedActivation{function};
  const auto gate = graph.gates.find(function);
  if (gate == graph.gates.end() || !gate->second.alone) return std::nullopt;
  return expert_gate(gate->second, is_gated(node), inner, graph.dtype);
}

bool is_understood(const ExportedNode& node) {
  const Json& arguments = node.arguments;
  return arguments.size() == 10 && arguments[kGateUpBias].is_null() == arguments[kDownBias].is_null() &&
         arguments[kTransposed].is_boolean() && arguments[kGated].is_boolean();
}

/// The names of the tensors that a recorded stack puts together; empty if `reference` is something else.
std::vector<std::string> stacked(const ExportedParameter& parameter, const Json& reference,
                                 const std::vector<std::int64_t>& shape) {
  for (const Json& step : parameter.steps) {
    if (!reference.contains("made") || step.at("outs") != Json::array({reference.at("made")})) continue;
    const Json& arguments = step.at("args");
    const bool along_first = arguments.size() == 1 || (arguments.size() == 2 && arguments[1] == Json(0));
    if (step.at("op") != "aten.stack.default" || !along_first || !arguments[0].is_array()) return {};
    std::vector<std::string> names;
    for (const Json& source : arguments[0]) {
      const auto place = source.is_object() ? source.value("source", std::int64_t{-1}) : -1;
      if (place < 0 || place >= static_cast<std::int64_t>(parameter.sources.size())) return {};
      if (parameter.sources[static_cast<std::size_t>(place)].shape != shape) return {};
      names.push_back(parameter.sources[static_cast<std::size_t>(place)].name);
    }
    return names;
  }
  return {};
}

/// The names of gate and up weights of all experts.
std::pair<std::vector<std::string>, std::vector<std::string>> gate_and_up(const ExportedParameter& parameter,
                                                                          const std::vector<std::int64_t>& shape) {
  for (const Json& step : parameter.steps) {
    if (!parameter.result.contains("made") || step.at("outs") != Json::array({parameter.result.at("made")})) continue;
    const Json& arguments = step.at("args");
    if (step.at("op") != "aten.cat.default" || arguments.size() != 2 || arguments[1] != Json(1) ||
        !arguments[0].is_array() || arguments[0].size() != 2)
      return {};
    return {stacked(parameter, arguments[0][0], shape), stacked(parameter, arguments[0][1], shape)};
  }
  return {};
}

/// The module of the expert whose linear has this weight.
std::string expert_of(const std::string& weight) { return parent_name(parent_name(weight)); }

/// The list of experts, of one of which a linear has this weight.
std::string list_of(const std::string& weight) { return parent_name(expert_of(weight)); }

/// Whether the checkpoint has a parameter as one tensor, and if so, whether its matrices lie there with rows and columns
/// exchanged.
std::optional<bool> stored_exchanged(const ExportedParameter& parameter) {
  if (parameter.sources.size() != 1) return std::nullopt;
  bool exchanged = false;
  Json value = {{"source", 0}};
  for (const Json& step : parameter.steps) {
    const bool exchanges = step.at("op") == "aten.transpose.int" && step.at("args") == Json::array({value, 1, 2});
    const bool copies = step.at("op") == "aten.clone.default" && step.at("args").at(0) == value;
    if (!exchanges && !copies) return std::nullopt;
    exchanged ^= exchanges;
    value = {{"made", step.at("outs").at(0)}};
  }
  return parameter.result == value ? std::optional(exchanged) : std::nullopt;
}

/// Of a layer; a file that says more is damaged.
constexpr std::int64_t kMostExperts = 1 << 16;

/// As engines and LLM Compressor call the linears of an expert.
const std::vector<std::string> kParts = {"gate_proj", "up_proj", "down_proj"};

struct ExpertSizes {
  std::int64_t count = 0, intermediate = 0, features = 0;
  bool gated = true;
  bool transposed = false;       ///< stacked gate and up have a row per input in the checkpoint
  bool down_transposed = false;  ///< the same of down
  bool alternating = false;      ///< stacked outputs of gate and up alternate
  bool has_bias = false;
  /// Whether the members of stacked tensors lie one after the other.
  bool in_order() const { return !transposed && !down_transposed && !alternating && !has_bias; }
};

/// The names that experts have where one tensor of the checkpoint holds all of them: `parts` are those of gate, if there is
/// one, up and down.
std::vector<LoweredExperts::Names> split_names(const std::string& list, const ExpertSizes& sizes,
                                               const std::vector<std::string>& parts) {
  std::vector<LoweredExperts::Names> names;
  for (std::int64_t e = 0; e < sizes.count; ++e) {
    const auto name = [&](std::size_t part) { return fmt::format("{}.{}.{}.weight", list, e, parts[part]); };
    names.push_back({sizes.gated ? name(0) : "", name(parts.size() - 2), name(parts.size() - 1)});
  }
  return names;
}

/// The names of experts that transformers has in stacked tensors only, where the checkpoint has linears of each.
std::vector<LoweredExperts::Names> stored_apart(const ExportedParameter& first, const ExportedParameter& down,
                                                const ExpertSizes& sizes) {
  const std::string list = list_of(first.sources[0].name);
  std::vector<LoweredExperts::Names> names = split_names(list, sizes, kParts);
  std::set<std::string> expected, found;
  for (const LoweredExperts::Names& own : names)
    for (const std::string& name : {own.gate, own.up, own.down})
      if (!name.empty()) expected.insert(name);
  for (const ExportedParameter* parameter : {&first, &down})
    for (const ExportedParameter::Source& source : parameter->sources) found.insert(source.name);
  return expected == found ? std::move(names) : std::vector<LoweredExperts::Names>();
}

/// The list of experts that a stacked parameter of the checkpoint holds: where its tensor is, or, if that is another module's
/// weight, beside that module, under the list's own name.
std::string stacked_list(const ExportedParameter& parameter) {
  const std::string& stored = parameter.sources[0].name;
  if (!stored.ends_with(".weight")) return parent_name(stored);
  return fmt::format("{}.{}", parent_name(parent_name(stored)), last_part(parent_name(parameter.name)));
}

std::vector<LoweredExperts::Names> names_of(const ExportedParameter& first, const ExportedParameter& down,
                                            const ExpertSizes& sizes) {
  const std::int64_t inner = sizes.intermediate, features = sizes.features;
  if (stored_exchanged(first) && stored_exchanged(down)) {
    const std::string list = stacked_list(first);
    const bool usual = first.name.ends_with(sizes.gated ? ".gate_up_proj" : ".up_proj") &&
                       down.name.ends_with(".down_proj") && stacked_list(down) == list;
    std::vector<std::string> parts = first.splits;
    parts.insert(parts.end(), down.splits.begin(), down.splits.end());
    if (parts.size() != (sizes.gated ? 3 : 2)) parts = kParts;
    return usual ? split_names(list, sizes, parts) : std::vector<LoweredExperts::Names>();
  }
  if (!sizes.in_order()) return stored_apart(first, down, sizes);
  std::vector<std::string> gates, ups;
  if (sizes.gated)
    std::tie(gates, ups) = gate_and_up(first, {inner, features});
  else
    ups = stacked(first, first.result, {inner, features});
  const std::vector<std::string> downs = stacked(down, down.result, {features, inner});
  const auto all = static_cast<std::size_t>(sizes.count);
  if (gates.size() != (sizes.gated ? all : 0) || ups.size() != all || downs.size() != all) return {};
  std::vector<LoweredExperts::Names> names;
  for (std::size_t e = 0; e < all; ++e) {
    const LoweredExperts::Names own{sizes.gated ? gates[e] : "", ups[e], downs[e]};
    const std::string expert = expert_of(own.up);
    if (!own.up.ends_with(".weight") || expert_of(own.down) != expert || (sizes.gated && expert_of(own.gate) != expert))
      return {};
    names.push_back(own);
  }
  return names;
}

struct ExpertParameters {
  std::vector<LoweredExperts::Names> names;
  ExpertSizes sizes;
  std::vector<model::StackedTensor> stacked;
  std::optional<graph::Operation> gate;
};

/// The tensors in which a checkpoint has the experts of a layer.
std::vector<model::StackedTensor> stacked_tensors(const ExportedParameter& gate_up, const ExportedParameter& down,
                                                  const std::vector<LoweredExperts::Names>& names,
                                                  const ExpertSizes& sizes) {
  const std::int64_t count = sizes.count, features = sizes.features, inner = sizes.intermediate;
  const std::int64_t first = (sizes.gated ? 2 : 1) * inner;
  const auto shape = [&](bool transposed, std::int64_t inputs, std::int64_t outputs) {
    return transposed ? std::vector<std::int64_t>{count, inputs, outputs}
                      : std::vector<std::int64_t>{count, outputs, inputs};
  };
  std::vector<model::StackedTensor> stacked = {
      {gate_up.sources[0].name, shape(sizes.transposed, features, first), sizes.transposed, sizes.alternating},
      {down.sources[0].name, shape(sizes.down_transposed, inner, features), sizes.down_transposed, false}};
  for (const LoweredExperts::Names& own : names) {
    stacked[0].members.push_back(sizes.gated ? std::vector{own.gate, own.up} : std::vector{own.up});
    stacked[1].members.push_back({own.down});
  }
  if (!sizes.has_bias) return stacked;
  for (const int weights : {0, 1}) {
    const bool is_first = weights == 0;
    model::StackedTensor biases{
        stacked[weights].name + "_bias", {count, is_first ? first : features}, false, is_first && sizes.alternating};
    for (std::vector<std::string> expert : stacked[weights].members) {
      std::transform(expert.begin(), expert.end(), expert.begin(), bias_of);
      biases.members.push_back(std::move(expert));
    }
    stacked.push_back(std::move(biases));
  }
  return stacked;
}

/// Whether the biases are in the checkpoint as the weights are.
bool has_biases(const ExportedGraph& graph, const ExportedNode& node, const ExportedParameter& first,
                const ExportedParameter& down) {
  for (const auto& [argument, weights] : {std::pair(kGateUpBias, &first), std::pair(kDownBias, &down)}) {
    const auto value = value_argument(node, argument);
    const auto biases = value ? graph.parameters.find(*value) : graph.parameters.end();
    if (biases == graph.parameters.end()) return false;
    const ExportedParameter& own = biases->second;
    const bool is_whole = stored_exchanged(*weights).has_value();
    if (is_whole ? !own.is_stored() || own.sources[0].name != weights->sources[0].name + "_bias"
                 : own.sources.size() != weights->sources.size())
      return false;
    for (std::size_t i = 0; !is_whole && i < own.sources.size(); ++i)
      if (own.sources[i].name != bias_of(weights->sources[i].name)) return false;
  }
  return true;
}

ExpertParameters expert_parameters(const ExportedGraph& graph, const ExportedNode& node) {
  const auto gate_up = value_argument(node, kGateUp), down = value_argument(node, kDown);
  if (!is_understood(node) || !gate_up || !down) return {};
  const auto first = graph.parameters.find(*gate_up), second = graph.parameters.find(*down);
  const std::vector<Size>& shape = graph.types[static_cast<std::size_t>(*gate_up)].shape;
  if (first == graph.parameters.end() || second == graph.parameters.end() || shape.size() != 3) return {};
  if (shape[0].factor > kMostExperts) return {};
  if (graph.types[static_cast<std::size_t>(*gate_up)].dtype != graph.dtype) return {};
  ExpertSizes sizes{.count = shape[0].factor, .gated = is_gated(node)};
  const bool transposed = node.arguments[kTransposed] == Json(true);
  sizes.transposed = transposed != stored_exchanged(first->second).value_or(false);
  sizes.down_transposed = transposed != stored_exchanged(second->second).value_or(false);
  sizes.has_bias = !node.arguments[kGateUpBias].is_null();
  const std::int64_t outputs = shape[transposed ? 2 : 1].factor;
  sizes.intermediate = sizes.gated ? outputs / 2 : outputs;
  sizes.features = shape[transposed ? 1 : 2].factor;
  std::optional<graph::Operation> operation = gate_of(graph, node, sizes.intermediate);
  if (!operation) return {};
  const auto gate = graph.gates.find(node.arguments[kFunction].get<std::string>());
  sizes.alternating = sizes.gated && gate != graph.gates.end() && gate->second.interleaved;
  if (sizes.has_bias && !has_biases(graph, node, first->second, second->second)) return {};
  ExpertParameters parameters{names_of(first->second, second->second, sizes), sizes, {}, std::move(operation)};
  // Fused tensors, whose experts lie one after the other and which readers know divided, are described elsewhere.
  const bool whole = first->second.sources.size() == 1;
  const bool splits = !first->second.splits.empty() && !second->second.splits.empty();
  if (!parameters.names.empty() && whole && (!splits || !sizes.in_order()))
    parameters.stacked = stacked_tensors(first->second, second->second, parameters.names, sizes);
  for (model::StackedTensor& stacked : parameters.stacked) stacked.divided = splits;
  return parameters;
}

/// The number of experts of a layer whose experts can have nodes of their own; else 0.
std::int64_t expert_count(const ExportedGraph& graph, const ExportedNode& node) {
  return static_cast<std::int64_t>(expert_parameters(graph, node).names.size());
}

// Adds, because a token may name an expert twice.
constexpr const char* kScatter = "aten.scatter_add.default";

}  // namespace

std::int64_t find_logits(const Layouts& layouts, const Lowerings& lowered, std::int64_t from, std::int64_t count) {
  std::set<std::int64_t> seen;
  std::vector<std::int64_t> open = {from};
  while (!open.empty()) {
    const std::int64_t value = layouts.origin(open.back());
    open.pop_back();
    if (const auto found = lowered.find(value); found != lowered.end()) {
      const auto* node = std::get_if<Lowered>(&found->second);
      const auto* linear = node == nullptr ? nullptr : std::get_if<graph::Linear>(&node->operation);
      if (linear != nullptr && linear->out_features == count) return value;
      continue;
    }
    if (const ExportedNode* node = layouts.producer(value))
      each_value(node->arguments, [&](std::int64_t read) {
        if (seen.insert(read).second) open.push_back(read);
      });
  }
  return -1;
}

std::string bias_of(const std::string& weight) { return parent_name(weight) + ".bias"; }

void add_routing_matrices(ExportedGraph& graph) {
  std::vector<ExportedNode> nodes;
  nodes.reserve(graph.nodes.size());
  for (ExportedNode& node : graph.nodes) {
    const std::int64_t count = node.op == kExperts ? expert_count(graph, node) : 0;
    if (count > 0) {
      const ValueType type{graph.types[static_cast<std::size_t>(*value_argument(node, kWeights))].dtype,
                           {{1, 1, true}, {count, 0, true}}};
      const std::int64_t zeros = graph.new_value(type), matrix = graph.new_value(type);
      const Json size = Json::array({Json{{"tokens", 1}}, count});
      nodes.push_back(
          {"aten.new_zeros.default", Json::array({node.arguments[kWeights], size}), node.module, zeros, ""});
      nodes.push_back({kScatter, Json::array({Json{{"v", zeros}}, 1, node.arguments[kIndex], node.arguments[kWeights]}),
                       node.module, matrix, ""});
    }
    nodes.push_back(std::move(node));
  }
  graph.nodes = std::move(nodes);
}

std::optional<LoweredExperts> lower_experts(const ExportedGraph& graph, const Layouts& layouts,
                                            const Lowerings& lowered, const ExportedNode& node) {
  const ExpertParameters parameters = expert_parameters(graph, node);
  const auto x = value_argument(node, kX), index = value_argument(node, kIndex);
  if (parameters.names.empty() || !x || !index || !layouts.has_rows(*x) || layouts.type(*x).dtype != graph.dtype ||
      layouts.features(*x) != parameters.sizes.features || !layouts.tokens_first(*x))
    return std::nullopt;
  // The matrix that add_routing_matrices put right before.
  const ExportedNode* matrix = &node - 1;
  if (&node == graph.nodes.data() || matrix->op != kScatter || matrix->arguments[2] != node.arguments[kIndex] ||
      layouts.type(matrix->out).dtype != graph.dtype)
    return std::nullopt;
  LoweredExperts experts;
  experts.x = layouts.origin(*x);
  experts.routing = matrix->out;
  experts.logits = find_logits(layouts, lowered, *index, static_cast<std::int64_t>(parameters.names.size()));
  if (experts.logits < 0) experts.logits = experts.routing;
  experts.features = parameters.sizes.features, experts.intermediate = parameters.sizes.intermediate;
  experts.gate = *parameters.gate;
  experts.experts = parameters.names;
  experts.has_bias = parameters.sizes.has_bias;
  experts.stacked = parameters.stacked;
  return experts;
}

}  // namespace layerpress::importer
