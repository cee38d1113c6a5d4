#include "layerpress/graph/tracer.h"

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

Symbol Tracer::record(Operation operation, std::vector<ValueId> inputs, std::int64_t features, ModuleId module) {
  const auto output = static_cast<ValueId>(graph_.values.size());
  graph_.values.push_back({features, static_cast<NodeId>(graph_.nodes.size())});
  graph_.nodes.push_back({std::move(operation), std::move(inputs), output, module});
  return {output, features};
}

Symbol Tracer::embedding(const std::string& name, Symbol ids, std::int64_t vocabulary, std::int64_t features) {
  const ModuleId module = enter(name, "Embedding");
  return record(Embedding{graph_.modules[module].name + ".weight", vocabulary, features}, {ids.id}, features, module);
}

Symbol Tracer::linear(const std::string& name, Symbol x, std::int64_t out_features, const LinearOptions& options) {
  const ModuleId module = enter(name, "Linear");
  const std::string& own = graph_.modules[module].name;
  Linear operation{options.tied_weight.empty() ? own + ".weight" : options.tied_weight,
                   options.bias ? own + ".bias" : "", x.features, out_features};
  return record(std::move(operation), {x.id}, out_features, module);
}

Symbol Tracer::rms_norm(const std::string& name, const std::string& class_name, Symbol x, double epsilon,
                        std::int64_t size) {
  const ModuleId module = enter(name, class_name);
  return record(RmsNorm{graph_.modules[module].name + ".weight", size == 0 ? x.features : size, epsilon}, {x.id},
                x.features, module);
}

Symbol Tracer::rotary(Symbol x, std::int64_t head_dim, std::int64_t table) {
  return record(Rotary{head_dim, table}, {x.id}, x.features, current_);
}

Symbol Tracer::attention(Symbol q, Symbol k, Symbol v, const Attention& attributes) {
  return record(attributes, {q.id, k.id, v.id}, q.features, current_);
}

Symbol Tracer::gated_activation(const std::string& function, Symbol gate, Symbol up) {
  return record(GatedActivation{function}, {gate.id, up.id}, gate.features, current_);
}

Symbol Tracer::add(Symbol a, Symbol b) { return record(Add{}, {a.id, b.id}, a.features, current_); }

Graph Tracer::finish(Symbol output) {
  graph_.output = output.id;
  Graph finished = std::move(graph_);
  *this = Tracer();
  lint(finished);
  return finished;
}

}  // namespace layerpress::graph
