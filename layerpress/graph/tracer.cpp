#include "layerpress/graph/tracer.h"

#include <utility>

#include "layerpress/base/error.h"

namespace layerpress::graph {

Tracer::Tracer() {
  graph_.values.push_back({});
  graph_.modules.push_back({"", "Model", -1});
}

std::string Tracer::full_name(const std::string& name) const {
  const std::string& outer = graph_.modules[current_].name;
  return outer.empty() ? name : outer + "." + name;
}

ModuleId Tracer::enter(const std::string& name, const std::string& class_name) {
  graph_.modules.push_back({full_name(name), class_name, current_});
  return static_cast<ModuleId>(graph_.modules.size()) - 1;
}

Tracer::Scope Tracer::module(const std::string& name, const std::string& class_name) {
  return Scope(*this, enter(name, class_name));
}

std::int64_t Tracer::add_rope_table(RopeTable table) {
  graph_.rope_tables.push_back(std::move(table));
  return static_cast<std::int64_t>(graph_.rope_tables.size()) - 1;
}

Symbol Tracer::record(Operation operation, const std::vector<Symbol>& inputs, std::int64_t features, ModuleId module) {
  return record(std::move(operation), inputs, features, inputs.at(0).rows, module);
}

Symbol Tracer::record(Operation operation, const std::vector<Symbol>& inputs, std::int64_t features, Rows rows,
                      ModuleId module) {
  const auto output = static_cast<ValueId>(graph_.values.size());
  graph_.values.push_back({features, static_cast<NodeId>(graph_.nodes.size()), rows});
  std::vector<ValueId> ids;
  for (const Symbol& input : inputs) ids.push_back(input.id);
  graph_.nodes.push_back({std::move(operation), std::move(ids), output, module});
  return {output, features, rows};
}

Symbol Tracer::input(std::int64_t features, Rows rows) {
  if (!graph_.nodes.empty()) throw InternalError("[graph.tracer] an input follows an operation");
  graph_.values.push_back({features, -1, rows});
  return {static_cast<ValueId>(graph_.values.size()) - 1, features, rows};
}

Symbol Tracer::operation(Operation operation, const std::vector<Symbol>& inputs, std::int64_t features, Rows rows) {
  return record(std::move(operation), inputs, features, rows, current_);
}

Symbol Tracer::embedding(const std::string& name, Symbol ids, std::int64_t vocabulary, std::int64_t features) {
  const ModuleId module = enter(name, "Embedding");
  return record(Embedding{graph_.modules[module].name + ".weight", vocabulary, features}, {ids}, features, module);
}

Symbol Tracer::linear(const std::string& name, Symbol x, std::int64_t out_features, const LinearOptions& options) {
  const ModuleId module = enter(name, options.class_name);
  const std::string& own = graph_.modules[module].name;
  Linear operation{options.tied_weight.empty() ? own + ".weight" : options.tied_weight,
                   options.bias ? own + ".bias" : "", x.features, out_features};
  return record(std::move(operation), {x}, out_features, module);
}

Symbol Tracer::rms_norm(const std::string& name, const std::string& class_name, Symbol x, double epsilon,
                        std::int64_t size) {
  return rms_norm(name, class_name, x, RmsNorm{.weight = "", .size = size, .epsilon = epsilon});
}

Symbol Tracer::rms_norm(const std::string& name, const std::string& class_name, Symbol x, RmsNorm attributes) {
  const ModuleId module = enter(name, class_name);
  attributes.weight = graph_.modules[module].name + ".weight";
  if (attributes.size == 0) attributes.size = x.features;
  return record(std::move(attributes), {x}, x.features, module);
}

Symbol Tracer::layer_norm(const std::string& name, const std::string& class_name, Symbol x, double epsilon, bool bias) {
  const ModuleId module = enter(name, class_name);
  const std::string& own = graph_.modules[module].name;
  return record(LayerNorm{own + ".weight", bias ? own + ".bias" : "", x.features, epsilon}, {x}, x.features, module);
}

Symbol Tracer::rotary(Symbol x, std::int64_t head_dim, std::int64_t table) {
  return rotary(x, Rotary{.head_dim = head_dim, .table = table});
}

Symbol Tracer::rotary(Symbol x, const Rotary& attributes) { return record(attributes, {x}, x.features, current_); }

Symbol Tracer::attention(Symbol q, Symbol k, Symbol v, const Attention& attributes) {
  return record(attributes, {q, k, v}, attributes.heads * attributes.value_dim(), current_);
}

Symbol Tracer::gated_activation(const std::string& function, Symbol gate, Symbol up) {
  return record(GatedActivation{function}, {gate, up}, gate.features, current_);
}

Symbol Tracer::add(Symbol a, Symbol b) { return record(Add{}, {a, b}, a.features, current_); }

Symbol Tracer::gate(Symbol a, Symbol b) { return record(Gate{}, {a, b}, b.features, current_); }

Symbol Tracer::scale(Symbol x, const Scale& attributes) { return record(attributes, {x}, x.features, current_); }

Symbol Tracer::soft_cap(Symbol x, double cap) { return record(SoftCap{cap}, {x}, x.features, current_); }

Symbol Tracer::slice(Symbol x, const Slice& attributes) {
  return record(attributes, {x}, x.features / attributes.size * (attributes.end - attributes.begin), current_);
}

Symbol Tracer::join_heads(Symbol a, Symbol b, std::int64_t heads) {
  return record(JoinHeads{heads, a.features / heads, b.features}, {a, b}, a.features + heads * b.features, current_);
}

Symbol Tracer::route(Symbol logits, const Route& attributes) {
  return record(attributes, {logits}, logits.features, current_);
}

Symbol Tracer::experts(const std::string& name, Symbol x, Symbol logits, Symbol routing, std::int64_t intermediate,
                       const std::string& function, const ExpertNames& names) {
  const auto all = module(name, names.class_name + "List");
  Symbol sum;
  for (std::int64_t e = 0; e < routing.features; ++e) {
    const auto scope = module(fmt::format("{}", e), names.class_name);
    const Symbol own =
        record(SelectTokens{{e, routing.features}}, {x, logits, routing}, x.features, Rows::kSelected, current_);
    const Symbol gate = linear(names.gate, own, intermediate);
    const Symbol up = linear(names.up, own, intermediate);
    const Symbol inner = gated_activation(function, gate, up);
    linear(names.down, inner, x.features);
    const Symbol routed =
        record(TakeRouted{{e, routing.features}}, {inner, logits, routing}, intermediate, Rows::kSelected, current_);
    Expert expert{e, routing.features, x.features, intermediate, full_name(names.down) + ".weight", ""};
    std::vector<Symbol> inputs{routed, routing};
    if (e > 0) inputs.push_back(sum);
    sum = record(std::move(expert), inputs, x.features, Rows::kTokens, current_);
  }
  return sum;
}

Graph Tracer::finish(Symbol output) {
  graph_.output = output.id;
  Graph finished = std::move(graph_);
  *this = Tracer();
  lint(finished);
  return finished;
}

}  // namespace layerpress::graph
