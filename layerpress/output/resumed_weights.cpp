#include "layerpress/output/resumed_weights.h"

#include <optional>
#include <set>

#include "layerpress/graph/weight_matrix.h"
#include "layerpress/quant/compressed_weight.h"

namespace layerpress::output {

ResumedWeights::ResumedWeights(const setup::OpenedModel& model, const compression::Assignments& assignments,
                               const std::vector<graph::Subgraph>& subgraphs, const OutputWriter& output,
                               at::ScalarType dtype)
    : model_(model), output_(output), dtype_(dtype) {
  const graph::Graph& graph = model_.traced.graph;
  const std::set<std::string> changed = assignments.changed_plain(graph);
  for (std::size_t s = 0; s < subgraphs.size(); ++s)
    for (const graph::NodeId n : subgraphs[s].nodes) {
      const auto assigned = assignments.linears.find(n);
      if (!output.finished()[s] || assigned == assignments.linears.end() || !assigned->second.propagates) continue;
      const graph::Node& node = graph.nodes[n];
      compressed_[graph::weight_matrix(node.operation).value().weight] = {graph.module_name(node),
                                                                          assigned->second.scheme};
    }
  for (std::size_t s = 0; s < subgraphs.size(); ++s)
    if (output.finished()[s])
      for (const graph::NodeId n : subgraphs[s].nodes)
        for (const graph::WeightUse& use : graph::weights_of(graph.nodes[n].operation))
          if (changed.count(use.name) != 0) changed_.insert(use.name);
  // A compressed head's weight may be that of an embedding which is not compressed.
  for (const std::string& weight : assignments.read_plain(graph)) compressed_.erase(weight);
}

at::Tensor ResumedWeights::load(const std::string& name) const {
  const auto found = compressed_.find(name);
  if (changed_.count(name) != 0) return output_.read(name);
  if (found == compressed_.end()) return model_.checkpoint->tensor(name);
  const auto& [module, scheme] = found->second;
  const auto part = [this, &module = module](const std::string& suffix) -> std::optional<at::Tensor> {
    const std::string full = module + "." + suffix;
    if (!output_.has(full)) return std::nullopt;
    return output_.read(full);
  };
  return quant::dequantize(*scheme, quant::decompress(*scheme, module, part), dtype_);
}

void ResumedWeights::will_need(const std::string& name) const {
  if (is_original(name)) model_.checkpoint->will_need(name);
}

void ResumedWeights::fetch(const std::string& name) const {
  if (is_original(name)) model_.checkpoint->fetch(name);
}

void ResumedWeights::release(const std::string& name) const {
  if (is_original(name)) model_.checkpoint->release(name);
}

}  // namespace layerpress::output
