#include "layerpress/recipe/output_writer.h"

#include <ATen/ATen.h>

#include "layerpress/kernels/finite.h"
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

/// What takes the place of a compressed linear's weight.
std::vector<std::string> compressed_names(const graph::Graph& graph, graph::NodeId n,
                                          const runtime::Assignment& assignment) {
  const auto& linear = std::get<graph::Linear>(graph.nodes[n].operation);
  std::vector<std::string> names;
  for (const quant::CompressedTensorSpec& part :
       quant::compressed_layout(*assignment.scheme, linear.out_features, linear.in_features, assignment.scale_dtype))
    names.push_back(graph.module_name(graph.nodes[n]) + "." + part.suffix);
  return names;
}

/// Weights that are not compressed are not looked at anywhere else; one NaN in them spoils every statistic after it.
void require_finite(const std::string& name, const at::Tensor& tensor) {
  if (at::isFloatingType(tensor.scalar_type()) && !kernels::all_finite(tensor))
    throw DamagedWeightsError("[output] tensor '{}' holds NaN or infinite values; the checkpoint is damaged", name);
}

}  // namespace

OutputWriter::OutputWriter(const OpenedModel& model, const runtime::Assignments& assignments,
                           const std::vector<graph::Subgraph>& subgraphs, const Options& options)
    : model_(model),
      assignments_(assignments),
      subgraphs_(subgraphs),
      directory_(options.directory),
      finished_(subgraphs.size(), false) {
  const std::vector<checkpoint::TensorSpec> specs = output_specs(model, assignments, plain_);
  for (const checkpoint::TensorSpec& spec : specs) announced_.insert(spec.name);
  writer_ = std::make_unique<checkpoint::CheckpointWriter>(
      directory_, specs,
      checkpoint::CheckpointWriter::Options{.max_shard_bytes = options.max_shard_bytes, .reopen = options.reopen});
  if (options.reopen) remove_leftovers();
}

/// Whatever else an earlier run left is half written or will be written again.
void OutputWriter::remove_leftovers() const {
  std::set<std::string> wanted = {runtime::Journal::kFileName, kScratchName};
  for (const std::string& name : writer_->file_names()) wanted.insert(name);
  std::vector<std::filesystem::path> leftovers;
  for (const auto& entry : std::filesystem::directory_iterator(directory_))
    if (wanted.count(entry.path().filename().string()) == 0) leftovers.push_back(entry.path());
  for (const std::filesystem::path& path : leftovers) std::filesystem::remove_all(path);
}

namespace {

/// Whether the record's module reports can be read.
bool has_reports(const Json& record) {
  const auto modules = record.find("modules");
  if (modules == record.end() || !modules->is_array()) return false;
  try {
    for (const Json& module : *modules) (void)runtime::ModuleReport::from_json(module);
  } catch (const std::exception&) {
    return false;
  }
  return true;
}

}  // namespace

bool OutputWriter::accept_tensors(std::size_t index, const Json& tensors) {
  for (const graph::NodeId n : subgraphs_[index].nodes)
    if (const auto assigned = assignments_.find(n); assigned != assignments_.end())
      for (const std::string& name : compressed_names(model_.traced.graph, n, assigned->second))
        if (!tensors.contains(name)) return false;
  for (const auto& [name, checksum] : tensors.items())
    if (announced_.count(name) == 0 || !accepted_.insert(name).second) return false;
  std::vector<std::string> accepted;
  for (const auto& [name, checksum] : tensors.items()) {
    if (checksum.is_string() && writer_->accept(name, checksum.get<std::string>())) {
      accepted.push_back(name);
      continue;
    }
    for (const std::string& other : accepted) writer_->retract(other);
    return false;
  }
  for (const std::string& name : accepted) plain_.erase(name);
  return true;
}

std::vector<std::string> OutputWriter::accept(const std::vector<Json>& records) {
  std::vector<std::string> damaged;
  for (const Json& record : records) {
    const auto index = json_get_or<std::size_t>(record, "index", "journal", subgraphs_.size());
    const auto tensors = record.find("tensors");
    if (index >= subgraphs_.size() || finished_[index] || tensors == record.end() || !tensors->is_object()) continue;
    if (has_reports(record) && accept_tensors(index, *tensors)) {
      finished_[index] = true;
      records_[index] = record;
    } else {
      damaged.push_back(subgraphs_[index].name);
    }
  }
  return damaged;
}

void OutputWriter::start_journal(const Json& header) {
  std::vector<Json> records = {header};
  for (const auto& [index, record] : records_) records.push_back(record);
  journal_ = std::make_unique<runtime::Journal>(directory_ / runtime::Journal::kFileName, records);
  committer_ = std::make_unique<SubgraphCommitter>(*writer_, *journal_);
}

void OutputWriter::on_compressed(const graph::Node& node, const quant::QuantizationScheme& scheme,
                                 const runtime::CompressedModule& result) {
  const std::string& module = model_.traced.graph.module_name(node);
  for (const auto& [suffix, tensor] : quant::compress(scheme, result.weight)) {
    written_.push_back(module + "." + suffix);
    writer_->write(written_.back(), tensor);
  }
  reports_.push_back(result.report);
}

void OutputWriter::copy(const std::string& name) {
  const at::Tensor tensor = model_.checkpoint->tensor(name);
  require_finite(name, tensor);
  writer_->write(name, tensor);
  model_.checkpoint->release(name);
  plain_.erase(name);
  written_.push_back(name);
}

void OutputWriter::on_subgraph_done(std::size_t index, const Json& boundary) {
  for (const graph::NodeId n : subgraphs_[index].nodes)
    for (const graph::WeightUse& use : graph::weights_of(model_.traced.graph.nodes[n].operation))
      if (plain_.count(use.name) != 0) copy(use.name);
  Json record = {{"record", "subgraph"}, {"index", index}, {"name", subgraphs_[index].name}, {"boundary", boundary}};
  record["tensors"] = Json::object();
  for (const std::string& name : written_) record["tensors"][name] = writer_->checksum(name);
  record["modules"] = Json::array();
  for (const runtime::ModuleReport& report : reports_) record["modules"].push_back(report.to_json());
  written_.clear();
  reports_.clear();
  finished_[index] = true;
  records_[index] = record;
  if (committer_) committer_->commit(index, std::move(record));
}

std::optional<std::size_t> OutputWriter::durable_subgraph() {
  return committer_ ? committer_->durable() : std::nullopt;
}

std::vector<runtime::ModuleReport> OutputWriter::reports() const {
  std::vector<runtime::ModuleReport> reports;
  for (const auto& [index, record] : records_)
    if (record.contains("modules"))
      for (const Json& module : record["modules"]) reports.push_back(runtime::ModuleReport::from_json(module));
  return reports;
}

void OutputWriter::finish() {
  if (committer_) committer_->finish();
  while (!plain_.empty()) copy(*plain_.begin());
  writer_->finish();
}

}  // namespace layerpress::recipe
