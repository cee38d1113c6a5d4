#include "layerpress/recipe/output_writer.h"

#include <ATen/ATen.h>

#include "layerpress/quant/compressed_weight.h"

namespace layerpress::recipe {
namespace {

/// All tensors of the output in the order of the graph, then those that the graph does not read.
std::vector<checkpoint::TensorSpec> output_specs(const OpenedModel& model, const runtime::Assignments& assignments,
                                                 std::set<std::string>& plain) {
  const graph::Graph& graph = model.traced.graph;
  std::vector<checkpoint::TensorSpec> specs;
  std::set<std::string> replaced;
  // A compressed head that shares the embedding's weight is untied: the embedding stays as it is beside it.
  std::set<std::string> embeddings;
  for (const graph::Node& node : graph.nodes)
    if (const auto* op = std::get_if<graph::Embedding>(&node.operation)) embeddings.insert(op->weight);
  for (const auto& [node, assignment] : assignments) {
    const std::string& weight = std::get<graph::Linear>(graph.nodes[node].operation).weight;
    if (embeddings.count(weight) == 0) replaced.insert(weight);
  }
  const auto add_plain = [&](const std::string& name) {
    if (replaced.count(name) == 0 && plain.insert(name).second) specs.push_back(model.checkpoint->spec(name));
  };
  for (graph::NodeId n = 0; n < static_cast<graph::NodeId>(graph.nodes.size()); ++n) {
    const graph::Node& node = graph.nodes[n];
    const auto assigned = assignments.find(n);
    if (assigned != assignments.end()) {
      const auto& linear = std::get<graph::Linear>(node.operation);
      for (const quant::CompressedTensorSpec& part : quant::compressed_layout(
               *assigned->second.scheme, linear.out_features, linear.in_features, assigned->second.scale_dtype))
        specs.push_back({graph.module_name(node) + "." + part.suffix, part.dtype, part.shape});
    }
    for (const graph::WeightUse& use : graph::weights_of(node.operation)) add_plain(use.name);
  }
  for (const std::string& name : model.checkpoint->names()) add_plain(name);
  return specs;
}

/// Weights that are not compressed are not looked at anywhere else; one NaN in them spoils every statistic after it.
void require_finite(const std::string& name, const at::Tensor& tensor) {
  const bool plain_float = tensor.scalar_type() == at::kFloat || tensor.scalar_type() == at::kBFloat16 ||
                           tensor.scalar_type() == at::kHalf || tensor.scalar_type() == at::kDouble;
  if (!plain_float || tensor.numel() == 0) return;
  const auto [least, greatest] = at::aminmax(tensor);
  if (!at::isfinite(least).item<bool>() || !at::isfinite(greatest).item<bool>())
    throw CheckpointError("[output] tensor '{}' holds NaN or infinite values; the checkpoint is damaged", name);
}

}  // namespace

OutputWriter::OutputWriter(const OpenedModel& model, const runtime::Assignments& assignments,
                           std::filesystem::path directory, std::uint64_t max_shard_bytes)
    : model_(model) {
  const std::vector<checkpoint::TensorSpec> specs = output_specs(model, assignments, plain_);
  writer_ = std::make_unique<checkpoint::CheckpointWriter>(
      std::move(directory), specs, checkpoint::CheckpointWriter::Options{.max_shard_bytes = max_shard_bytes});
}

void OutputWriter::on_compressed(const graph::Node& node, const quant::QuantizationScheme& scheme,
                                 const runtime::CompressedModule& result) {
  const std::string& module = model_.traced.graph.module_name(node);
  for (const auto& [suffix, tensor] : quant::compress(scheme, result.weight))
    writer_->write(module + "." + suffix, tensor);
  reports_.push_back(result.report);
}

void OutputWriter::copy(const std::string& name) {
  const at::Tensor tensor = model_.checkpoint->tensor(name);
  require_finite(name, tensor);
  writer_->write(name, tensor);
  model_.checkpoint->release(name);
  plain_.erase(name);
}

void OutputWriter::on_subgraph_done(const graph::Subgraph& subgraph) {
  for (const graph::NodeId n : subgraph.nodes)
    for (const graph::WeightUse& use : graph::weights_of(model_.traced.graph.nodes[n].operation))
      if (plain_.count(use.name) != 0) copy(use.name);
}

void OutputWriter::finish() {
  while (!plain_.empty()) copy(*plain_.begin());
  writer_->finish();
}

}  // namespace layerpress::recipe
