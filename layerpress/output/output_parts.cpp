#include "layerpress/output/output_parts.h"

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <tuple>

#include "layerpress/base/text.h"
#include "layerpress/compression/assignments.h"
#include "layerpress/graph/weight_matrix.h"
#include "layerpress/quant/compressed_weight.h"

namespace layerpress::output {
namespace {

/// The tensors that replace the weight of the compressed linear `n`.
std::vector<checkpoint::TensorSpec> compressed_specs(const graph::Graph& graph, graph::NodeId n,
                                                     const compression::Assignment& assignment) {
  const graph::WeightMatrix matrix = graph::weight_matrix(graph.nodes[n].operation).value();
  std::vector<checkpoint::TensorSpec> specs;
  for (const quant::NamedTensorSpec& part :
       quant::compressed_layout(*assignment.scheme, matrix.rows, matrix.columns, assignment.scale_dtype))
    specs.push_back({graph.module_name(graph.nodes[n]) + "." + part.suffix, part.dtype, part.shape});
  return specs;
}

std::vector<checkpoint::TensorSpec> parameter_specs(const graph::Graph& graph,
                                                    const compression::StoredParameters& stored) {
  std::vector<checkpoint::TensorSpec> specs;
  for (const quant::NamedTensorSpec& part : quant::parameter_layout(stored.value))
    specs.push_back({graph.module_name(graph.nodes[stored.reader]) + "." + part.suffix, part.dtype, part.shape});
  return specs;
}

/// The tensors that stand for an uncompressed tensor of the original: itself, or its codes and scales if it keeps them.
std::vector<checkpoint::TensorSpec> copied_specs(const setup::OpenedModel& model, const std::string& name) {
  if (model.kept.count(name) == 0) return {model.checkpoint->spec(name)};
  std::vector<checkpoint::TensorSpec> specs;
  for (const quant::NamedTensorSpec& part : model.quantized.at(name).compressed_layout)
    specs.push_back({parent_name(name) + "." + part.suffix, part.dtype, part.shape});
  return specs;
}

/// The weights that the output replaces. A compressed head that shares the weight of an uncompressed embedding, or of another operation,
/// is untied: their weight remains unchanged.
std::set<std::string> replaced_weights(const graph::Graph& graph, const compression::Assignments& assignments) {
  std::set<std::string> replaced;
  for (const auto& [node, assignment] : assignments.linears)
    replaced.insert(graph::weight_matrix(graph.nodes[node].operation).value().weight);
  for (const std::string& weight : assignments.read_plain(graph)) replaced.erase(weight);
  return replaced;
}

std::vector<OutputPart> all_parts(const setup::RunSetup& setup) {
  const setup::OpenedModel& model = setup.model;
  const compression::Assignments& assignments = setup.assignments;
  const std::vector<graph::Subgraph>& subgraphs = setup.subgraphs;
  const graph::Graph& graph = model.traced.graph;
  std::vector<std::size_t> subgraph_of(graph.nodes.size(), subgraphs.size());
  for (std::size_t s = 0; s < subgraphs.size(); ++s)
    for (const graph::NodeId n : subgraphs[s].nodes) subgraph_of[n] = s;
  std::vector<OutputPart> parts;
  std::set<std::string> left_out = replaced_weights(graph, assignments);
  left_out.insert(model.written_stacked.begin(), model.written_stacked.end());
  const std::set<std::string> changed = assignments.changed_plain(graph);
  const auto add_plain = [&](std::size_t subgraph, const std::string& name) {
    if (!left_out.insert(name).second || setup.target->left_out(name)) return;
    OutputPart part{subgraph, std::nullopt, {}, changed.count(name) != 0, name};
    for (const checkpoint::TensorSpec& tensor : copied_specs(model, name)) {
      const std::vector<checkpoint::TensorSpec> forms = setup.target->plain_forms(tensor);
      if (part.made && forms.size() > 1)
        throw RecipeError("[output] {}: the recipe changes it, but {} stores it in parts; ignore its module", name,
                          setup.target->format());
      part.tensors.insert(part.tensors.end(), forms.begin(), forms.end());
    }
    parts.push_back(std::move(part));
  };
  auto stored = assignments.stored.begin();  // in the order of the nodes
  for (graph::NodeId n = 0; n < static_cast<graph::NodeId>(graph.nodes.size()); ++n) {
    const auto assigned = assignments.linears.find(n);
    if (assigned != assignments.linears.end())
      parts.push_back({subgraph_of[n], n, compressed_specs(graph, n, assigned->second), /*made=*/true, ""});
    for (; stored != assignments.stored.end() && stored->reader == n; ++stored) {
      parts.push_back({subgraph_of[n], std::nullopt, parameter_specs(graph, *stored), /*made=*/true, ""});
      for (const checkpoint::TensorSpec& tensor : parts.back().tensors) left_out.insert(tensor.name);
    }
    for (const graph::WeightUse& use : graph::weights_of(graph.nodes[n].operation)) add_plain(subgraph_of[n], use.name);
  }
  for (const std::string& name : model.checkpoint->names()) add_plain(subgraphs.size(), name);
  for (const auto& [spec, value] : setup.target->own_tensors())
    parts.push_back({subgraphs.size(), std::nullopt, {spec}, /*made=*/true, ""});
  for (OutputPart& part : parts)
    for (const checkpoint::TensorSpec& tensor : part.tensors) part.bytes += tensor.nbytes();
  return parts;
}

/// Assigns each part to the set with the fewest bytes so far: subgraph by subgraph, the largest parts of each first, so
/// that ranks always have about equal amounts to write. Subgraphs with the largest tensors (embedding, head) come
/// first, because only later parts can even them out. With `linears_first`, all linears come before copied tensors.
void divide_into_sets(std::vector<OutputPart>& parts, const SetDivision& division) {
  std::map<std::size_t, std::uint64_t> largest;
  std::vector<OutputPart*> order;
  for (OutputPart& part : parts) {
    largest[part.subgraph] = std::max(largest[part.subgraph], part.bytes);
    order.push_back(&part);
  }
  const auto later = [&](const OutputPart* part) { return division.linears_first && !part->linear; };
  std::stable_sort(order.begin(), order.end(), [&](const OutputPart* a, const OutputPart* b) {
    return std::tuple(later(a), largest[b->subgraph], a->subgraph, b->bytes) <
           std::tuple(later(b), largest[a->subgraph], b->subgraph, a->bytes);
  });
  std::vector<std::uint64_t> bytes(static_cast<std::size_t>(division.sets), 0);
  for (OutputPart* part : order) {
    const auto least = std::min_element(bytes.begin(), bytes.end());
    part->set = static_cast<int>(least - bytes.begin());
    *least += part->bytes;
  }
}

}  // namespace

std::vector<OutputPart> output_parts(const setup::RunSetup& setup, const SetDivision& division) {
  std::vector<OutputPart> parts = all_parts(setup);
  divide_into_sets(parts, division);
  return parts;
}

checkpoint::CheckpointLayout layout_of(const setup::RunSetup& setup, const std::vector<OutputPart>& parts,
                                       std::uint64_t max_shard_bytes, int sets) {
  checkpoint::FileDivision division{max_shard_bytes, sets};
  std::vector<checkpoint::TensorSpec> specs;
  std::map<std::string, const quant::QuantizationScheme*> schemes;
  for (const OutputPart& part : parts)
    for (const checkpoint::TensorSpec& spec : part.tensors) {
      specs.push_back(spec);
      division.set_of_spec.push_back(part.set);
      if (part.linear) schemes[spec.name] = setup.assignments.linears.at(*part.linear).scheme;
    }
  return setup.target->layout(specs, division, [&](const std::string& tensor) {
    const auto found = schemes.find(tensor);
    return found == schemes.end() ? nullptr : found->second;
  });
}

}  // namespace layerpress::output
