#include "layerpress/importer/import_graph.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <set>
#include <stdexcept>

#include "layerpress/base/error.h"
#include "layerpress/base/text.h"
#include "layerpress/graph/facts/expert_inputs.h"
#include "layerpress/importer/described_modules.h"
#include "layerpress/importer/expert_lowering.h"
#include "layerpress/importer/exported/module_names.h"
#include "layerpress/importer/region_program.h"
#include "layerpress/model/blocks/expert_blocks.h"

namespace layerpress::importer {
namespace {

/// Of each layer whose experts the checkpoint may have so.
std::vector<std::vector<model::StackedTensor>> stacked_tensors(const Lowerings& lowered) {
  std::vector<std::vector<model::StackedTensor>> layers;
  for (const auto& [value, lowering] : lowered)
    if (const auto* experts = std::get_if<LoweredExperts>(&lowering); experts != nullptr && !experts->stacked.empty())
      layers.push_back(experts->stacked);
  return layers;
}

/// The dimension of its first argument in which a node looks values up; -1 if it looks nothing up there.
std::int64_t looked_up(const ExportedNode& node) {
  if (node.op == "aten.embedding.default") return 0;
  if (node.op == "aten.gather.default" || node.op == "aten.index_select.default")
    return json_integer(node.arguments.at(1));
  if (node.op != "aten.index.Tensor") return -1;
  const Json& indices = node.arguments.at(1);
  return std::find_if(indices.begin(), indices.end(), [](const Json& each) { return !each.is_null(); }) -
         indices.begin();
}

/// The tokens of a sample for which tables have a row for each position; 0 if no table limits them.
std::int64_t most_positions(const ExportedGraph& graph, const Layouts& layouts) {
  constexpr std::int64_t kMoreRows = 8;  // than positions, such as OPT's two
  const std::int64_t positions = graph.max_position_embeddings;
  for (const ExportedNode& node : graph.nodes) {
    const std::int64_t dimension = looked_up(node);
    const auto table = dimension < 0 ? std::nullopt : value_argument(node, 0);
    if (!table) continue;
    const std::vector<Size>& shape = graph.types[static_cast<std::size_t>(*table)].shape;
    if (dimension >= static_cast<std::int64_t>(shape.size())) continue;
    const Size& rows = shape[static_cast<std::size_t>(dimension)];
    const auto index = value_argument(node, 1);
    const bool by_position = !index || layouts.origin(*index) != graph.token_ids;
    if (by_position && rows.power == 0 && rows.factor >= positions && rows.factor < positions + kMoreRows)
      return positions;
  }
  return 0;
}

/// Records our nodes in the order of the export.
class Importer {
 public:
  explicit Importer(ExportedGraph& exported) : exported_(exported), layouts_(exported) {
    lowered_ = lower(exported_, layouts_, graph_.rope_tables);
    for (const auto& [value, lowering] : lowered_)
      if (const auto* experts = std::get_if<LoweredExperts>(&lowering)) add_router_of(*experts);
    for (const ExportedNode& node : exported_.nodes)
      if (node.op == "aten.topk.default") add_router(node);
  }

  model::TracedModel import() {
    const std::int64_t output = layouts_.origin(layouts_.uncast(exported_.output));
    if (!layouts_.has_rows(output))
      throw CheckpointError("[importer.output] expected one output row per token; use --model-graph builtin");
    const Regions regions(exported_, layouts_, lowered_, output);
    names_.emplace(exported_);
    graph_.values.push_back({});
    ids_[exported_.token_ids] = graph::Graph::kInput;
    add_constants(regions);
    for (const ExportedNode& node : exported_.nodes) {
      const auto lowered = lowered_.find(node.out);
      if (lowered != lowered_.end()) {
        if (regions.is_needed(node.out)) add_lowered(node, lowered->second);
      } else if (const auto region = regions.all().find(node.out); region != regions.all().end()) {
        add_region(node, regions, region->second);
      }
    }
    graph_.output = ids_.at(output);
    graph_.modules = names_->take_modules();
    name_routers();
    graph::lint(graph_);
    return described();
  }

 private:
  graph::ValueId value(std::int64_t exported) const {
    const auto found = ids_.find(exported);
    if (found == ids_.end()) throw InternalError("[importer.import] value {} has no node", exported);
    return found->second;
  }

  graph::ValueId add_node(graph::Operation operation, std::vector<graph::ValueId> inputs, std::int64_t features,
                          graph::Rows rows, graph::ModuleId module) {
    const auto id = static_cast<graph::ValueId>(graph_.values.size());
    graph_.values.push_back({features, static_cast<graph::NodeId>(graph_.nodes.size()), rows});
    graph_.nodes.push_back({std::move(operation), std::move(inputs), id, module});
    return id;
  }

  void add_constants(const Regions& regions) {
    std::set<std::int64_t> used;
    for (const auto& [root, region] : regions.all())
      for (const ExportedNode* node : region.nodes)
        each_value(node->arguments, [&](std::int64_t read) {
          if (exported_.constants.count(read) != 0) used.insert(read);
        });
    for (const std::int64_t constant : used) {
      constants_[constant] = static_cast<std::int64_t>(graph_.constants.size());
      graph_.constants.push_back(exported_.constants.at(constant));
    }
  }

  void add_lowered(const ExportedNode& node, const Lowering& lowering) {
    if (const auto* experts = std::get_if<LoweredExperts>(&lowering)) return add_experts(node, *experts);
    const auto& lowered = std::get<Lowered>(lowering);
    std::vector<graph::ValueId> inputs;
    for (const std::int64_t input : lowered.inputs) inputs.push_back(value(input));
    const std::string name = lowered.tied_name.empty() ? lowered.name : names_->stored(lowered.tied_name);
    const graph::ModuleId module =
        name.empty() ? names_->module(node.module) : names_->named(name, class_of(node, lowered.operation));
    ids_[node.out] =
        add_node(lowered.operation, std::move(inputs), layouts_.features(node.out), graph::Rows::kTokens, module);
  }

  /// Recipes do not take a router for a linear, nor a gate of one feature, which engines do not read compressed, whatever
  /// class the model uses for it. A class derived from Linear is one.
  std::string class_of(const ExportedNode& node, const graph::Operation& operation) const {
    if (routers_.count(node.out) != 0) return graph::kRouterClass;
    if (const auto* linear = std::get_if<graph::Linear>(&operation); linear != nullptr && linear->out_features == 1)
      return "Gate";
    const std::vector<std::string>& linears = exported_.linears;
    const std::string& path = exported_.modules[node.module].first;
    return std::find(linears.begin(), linears.end(), path) != linears.end() ? "Linear" : class_at(node.module);
  }

  /// A router may be several linears, of which only the last was known before.
  void name_routers() {
    for (const graph::NodeId n : graph::weighing_linears(graph_))
      if (std::string& name = graph_.modules[graph_.nodes[n].module].class_name; name == "Linear")
        name = graph::kRouterClass;
  }

  /// The linear that experts are chosen by, or weighed by if a table of tokens chooses them.
  void add_router_of(const LoweredExperts& all) {
    const auto count = static_cast<std::int64_t>(all.experts.size());
    routers_.insert(all.logits == all.routing ? find_logits(layouts_, lowered_, all.routing, count) : all.logits);
  }

  /// The linear whose features are compared to choose some of them, as routers do whose experts have no nodes here.
  void add_router(const ExportedNode& choice) {
    const auto compared = value_argument(choice, 0);
    if (!compared) return;
    const std::int64_t logits = find_logits(layouts_, lowered_, *compared, layouts_.last_size(*compared));
    if (logits >= 0) routers_.insert(logits);
  }

  const std::string& class_at(std::size_t module) const { return exported_.modules[module].second; }

  void add_region(const ExportedNode& node, const Regions& regions, const Region& region) {
    RegionNode own = region_node(exported_, layouts_, regions, region, constants_);
    std::vector<graph::ValueId> inputs;
    for (const std::int64_t input : own.inputs) inputs.push_back(value(input));
    const std::int64_t features = own.operation.features;
    ids_[node.out] = add_node(std::move(own.operation), std::move(inputs), features, graph::Rows::kTokens,
                              names_->module(node.module));
  }

  /// As graph::Tracer::experts does.
  void add_experts(const ExportedNode& node, const LoweredExperts& all) {
    using graph::Rows;
    const graph::ValueId x = value(all.x), logits = value(all.logits), routing = value(all.routing);
    const auto count = static_cast<std::int64_t>(all.experts.size());
    const std::int64_t features = all.features, inner = all.intermediate;
    graph::ValueId sum = -1;
    for (std::int64_t e = 0; e < count; ++e) {
      const LoweredExperts::Names& names = all.experts[static_cast<std::size_t>(e)];
      const graph::ModuleId module =
          names_->named(parent_name(parent_name(names.up)), class_at(node.module) + "Expert");
      const auto linear = [&](const std::string& weight, graph::ValueId input, std::int64_t in, std::int64_t out) {
        return add_node(graph::Linear{weight, all.has_bias ? bias_of(weight) : "", in, out}, {input}, out,
                        Rows::kSelected, names_->named(parent_name(weight), "Linear"));
      };
      const graph::ValueId own =
          add_node(graph::SelectTokens{{e, count}}, {x, logits, routing}, features, Rows::kSelected, module);
      std::vector<graph::ValueId> projected;
      for (const std::string& name : {names.gate, names.up})
        if (!name.empty()) projected.push_back(linear(name, own, features, inner));
      const graph::ValueId gated = add_node(all.gate, std::move(projected), inner, Rows::kSelected, module);
      linear(names.down, gated, inner, features);
      const graph::ValueId routed =
          add_node(graph::TakeRouted{{e, count}}, {gated, logits, routing}, inner, Rows::kSelected, module);
      std::vector<graph::ValueId> inputs{routed, routing};
      if (e > 0) inputs.push_back(sum);
      const std::string bias = all.has_bias ? bias_of(names.down) : "";
      sum = add_node(graph::Expert{e, count, features, inner, names.down, bias}, std::move(inputs), features,
                     Rows::kTokens, module);
    }
    ids_[node.out] = sum;
  }

  model::TracedModel described() {
    model::TracedModel model;
    model.graph = std::move(graph_);
    model.vocab_size = exported_.vocab_size;
    model.max_position_embeddings = exported_.max_position_embeddings;
    model.most_tokens = exported_.rotary_tokens > 0 ? exported_.rotary_tokens : most_positions(exported_, layouts_);
    model.tied_head = exported_.tied_head;
    model.own_head = exported_.own_head;
    model.default_sequential_targets = exported_.layer_classes;
    model.computing_dtype = exported_.dtype;
    add_fused_modules(model);
    model.stacked_tensors = stacked_tensors(lowered_);
    model::describe_experts(model);
    add_left_out(model, exported_, layouts_, *names_);
    add_aliases(model, exported_, *names_);
    return model;
  }

  ExportedGraph& exported_;
  Layouts layouts_;
  Lowerings lowered_;
  std::set<std::int64_t> routers_;  // values that experts are chosen by
  std::optional<ModuleNames> names_;
  graph::Graph graph_;
  std::map<std::int64_t, graph::ValueId> ids_;
  std::map<std::int64_t, std::int64_t> constants_;
};

[[noreturn]] void refuse(const char* what) {
  throw CheckpointError("[importer.import] graph.json: not the graph of a model ({}); export the graph again", what);
}

}  // namespace

model::TracedModel import_graph(const std::filesystem::path& folder) {
  ExportedGraph exported = read_exported_graph(folder);
  // What holds for every export need not hold for a file.
  try {
    return Importer(exported).import();
  } catch (const InternalError& fault) {
    refuse(fault.what());
  } catch (const nlohmann::json::exception& fault) {
    refuse(fault.what());
  } catch (const std::out_of_range& fault) {
    refuse(fault.what());
  } catch (const c10::Error& fault) {
    refuse(fault.what_without_backtrace());
  }
}

}  // namespace layerpress::importer
