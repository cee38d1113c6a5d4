#include "layerpress/importer/described_modules.h"

#include <algorithm>
#include <map>
#include <set>

#include "layerpress/base/text.h"

namespace layerpress::importer {
namespace {

/// "mlp.up_proj" of "model.layers.0.mlp.up_proj".
std::string leaf_with_parent(const std::string& name) {
  const auto last = name.rfind('.'), before = last == std::string::npos || last == 0 ? last : name.rfind('.', last - 1);
  return before == std::string::npos ? name : name.substr(before + 1);
}

/// Why modules that multiply have no node, by path, where it shows.
std::map<std::string, std::string> reasons_to_leave(const ExportedGraph& exported, const Layouts& layouts) {
  std::map<std::string, std::string> reasons;
  std::map<std::string, int> runs;
  for (const ExportedNode& node : exported.nodes) {
    const auto& [path, class_name] = exported.modules[node.module];
    const bool multiplies =
        node.op == "aten.linear.default" || node.op == "aten.addmm.default" || node.op == "aten.mm.default";
    if (class_name == "Conv1D")
      reasons[path] = "Conv1D holds its weight transposed, and compressed-tensors has no form for that";
    else if (multiplies && ++runs[path] > 1)
      reasons[path] = "the model runs it several times";
    else if (multiplies && !layouts.has_rows(node.out))
      reasons[path] = "the model runs it on several rows for a token";
  }
  return reasons;
}

}  // namespace

void add_fused_modules(model::TracedModel& model) {
  std::set<std::string> leaves;
  for (const graph::Module& module : model.graph.modules)
    if (module.class_name == "Linear") leaves.insert(leaf_with_parent(module.name));
  for (const std::vector<std::string>& fused :
       {std::vector<std::string>{"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"},
        std::vector<std::string>{"self_attn.q_a_proj", "self_attn.kv_a_proj_with_mqa"},
        std::vector<std::string>{"linear_attn.in_proj_qkv", "linear_attn.in_proj_z"},
        std::vector<std::string>{"linear_attn.in_proj_b", "linear_attn.in_proj_a"},
        std::vector<std::string>{"mlp.gate_proj", "mlp.up_proj"},
        std::vector<std::string>{"shared_expert.gate_proj", "shared_expert.up_proj"},
        std::vector<std::string>{"shared_experts.gate_proj", "shared_experts.up_proj"},
        std::vector<std::string>{"feed_forward.w1", "feed_forward.w3"}})
    if (std::all_of(fused.begin(), fused.end(), [&](const std::string& name) { return leaves.count(name) != 0; }))
      model.fused_modules.push_back(fused);
}

void add_left_out(model::TracedModel& model, const ExportedGraph& exported, const Layouts& layouts,
                  const ModuleNames& names) {
  std::set<std::string> reached;
  for (const graph::Node& node : model.graph.nodes) {
    if (std::holds_alternative<graph::Linear>(node.operation)) reached.insert(model.graph.module_name(node));
    if (std::holds_alternative<graph::Expert>(node.operation))
      reached.insert(parent_name(model.graph.module_name(node)));
  }
  std::set<std::string> read_by_parts;  // their stacked parameters are stored as weights of reached linears
  for (const auto& [id, parameter] : exported.parameters)
    if (!parameter.sources.empty() && reached.count(parent_name(parameter.sources[0].name)) != 0)
      read_by_parts.insert(parent_name(parameter.name));
  const std::map<std::string, std::string> reasons = reasons_to_leave(exported, layouts);
  for (const std::string& linear : exported.linears) {
    const std::string name = names.stored(linear);
    if (reached.count(name) != 0 || read_by_parts.count(linear) != 0) continue;
    model.left_out.push_back(name);
    if (const auto reason = reasons.find(linear); reason != reasons.end())
      model.left_out_reasons[name] = reason->second;
  }
}

void add_aliases(model::TracedModel& model, const ExportedGraph& exported, const ModuleNames& names) {
  const auto add = [&](const std::string& name, const std::string& alias) {
    std::vector<std::string>& known = model.aliases[name];
    if (alias != name && std::find(known.begin(), known.end(), alias) == known.end()) known.push_back(alias);
  };
  for (const std::string& linear : exported.linears) add(names.stored(linear), linear);
  if (!exported.head.empty()) add(names.stored(exported.head), "lm_head");
  std::erase_if(model.aliases, [](const auto& entry) { return entry.second.empty(); });
}

}  // namespace layerpress::importer
