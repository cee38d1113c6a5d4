#include "layerpress/output/output_writer.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <exception>
#include <filesystem>
#include <optional>
#include <system_error>
#include <tuple>
#include <utility>
#include <variant>

#include "layerpress/graph/weight_matrix.h"
#include "layerpress/kernels/finite.h"
#include "layerpress/quant/compressed_weight.h"

namespace layerpress::output {
namespace {

/// Tensors that one rank writes together: the replacement of a linear's weight, or a copied tensor.
struct Part {
  std::size_t subgraph;                 // the first subgraph that reads it, or the number of subgraphs
  std::optional<graph::NodeId> linear;  // the compressed linear whose weight it is
  std::vector<checkpoint::TensorSpec> tensors;
  bool made = false;  // not copied, but computed during the run
  std::uint64_t bytes = 0;
  int set = 0;
};

/// The tensors that replace a compressed linear's weight.
std::vector<checkpoint::TensorSpec> compressed_specs(const graph::Graph& graph, graph::NodeId n,
                                                     const compression::Assignment& assignment) {
  const graph::WeightMatrix matrix = graph::weight_matrix(graph.nodes[n].operation).value();
  std::vector<checkpoint::TensorSpec> specs;
  for (const quant::NamedTensorSpec& part :
       quant::compressed_layout(*assignment.scheme, matrix.rows, matrix.columns, assignment.scale_dtype))
    specs.push_back({quant::full_name(graph.module_name(graph.nodes[n]), part), part.dtype, part.shape});
  return specs;
}

std::vector<checkpoint::TensorSpec> parameter_specs(const graph::Graph& graph,
                                                    const compression::StoredParameters& stored) {
  std::vector<checkpoint::TensorSpec> specs;
  for (const quant::NamedTensorSpec& part : quant::parameter_layout(stored.value))
    specs.push_back({quant::full_name(graph.module_name(graph.nodes[stored.reader]), part), part.dtype, part.shape});
  return specs;
}

/// The weights that the output replaces. A compressed head that shares the weight of an uncompressed embedding is untied:
/// the embedding remains unchanged.
std::set<std::string> replaced_weights(const graph::Graph& graph, const compression::Assignments& assignments) {
  std::set<std::string> replaced;
  for (const auto& [node, assignment] : assignments.linears)
    replaced.insert(graph::weight_matrix(graph.nodes[node].operation).value().weight);
  for (graph::NodeId n = 0; n < static_cast<graph::NodeId>(graph.nodes.size()); ++n)
    if (const auto* op = std::get_if<graph::Embedding>(&graph.nodes[n].operation);
        op && assignments.linears.count(n) == 0)
      replaced.erase(op->weight);
  return replaced;
}

/// All tensors of the output in the order of the graph, then those that the graph does not read.
std::vector<Part> output_parts(const setup::OpenedModel& model, const compression::Assignments& assignments,
                               const std::vector<graph::Subgraph>& subgraphs) {
  const graph::Graph& graph = model.traced.graph;
  std::vector<std::size_t> subgraph_of(graph.nodes.size(), subgraphs.size());
  for (std::size_t s = 0; s < subgraphs.size(); ++s)
    for (const graph::NodeId n : subgraphs[s].nodes) subgraph_of[n] = s;
  std::vector<Part> parts;
  std::set<std::string> left_out = replaced_weights(graph, assignments);
  const std::set<std::string> changed = assignments.changed_plain(graph);
  const auto add_plain = [&](std::size_t subgraph, const std::string& name) {
    if (left_out.insert(name).second)
      parts.push_back({subgraph, std::nullopt, {model.checkpoint->spec(name)}, changed.count(name) != 0});
  };
  auto stored = assignments.stored.begin();  // in the order of the nodes
  for (graph::NodeId n = 0; n < static_cast<graph::NodeId>(graph.nodes.size()); ++n) {
    const auto assigned = assignments.linears.find(n);
    if (assigned != assignments.linears.end())
      parts.push_back({subgraph_of[n], n, compressed_specs(graph, n, assigned->second), /*made=*/true});
    for (; stored != assignments.stored.end() && stored->reader == n; ++stored) {
      parts.push_back({subgraph_of[n], std::nullopt, parameter_specs(graph, *stored), /*made=*/true});
      for (const checkpoint::TensorSpec& tensor : parts.back().tensors) left_out.insert(tensor.name);
    }
    for (const graph::WeightUse& use : graph::weights_of(graph.nodes[n].operation)) add_plain(subgraph_of[n], use.name);
  }
  for (const std::string& name : model.checkpoint->names()) add_plain(subgraphs.size(), name);
  for (Part& part : parts)
    for (const checkpoint::TensorSpec& tensor : part.tensors) part.bytes += tensor.nbytes();
  return parts;
}

/// Assigns each part to the set with the fewest bytes so far: subgraph by subgraph, the largest parts of each first, so
/// that ranks always have about equal amounts to write. Subgraphs with the largest tensors (embedding, head) come
/// first, because only later parts can even them out. With `linears_first`, all linears come before copied tensors.
void divide_into_sets(std::vector<Part>& parts, int sets, bool linears_first) {
  std::map<std::size_t, std::uint64_t> largest;
  std::vector<Part*> order;
  for (Part& part : parts) {
    largest[part.subgraph] = std::max(largest[part.subgraph], part.bytes);
    order.push_back(&part);
  }
  const auto later = [&](const Part* part) { return linears_first && !part->linear; };
  std::stable_sort(order.begin(), order.end(), [&](const Part* a, const Part* b) {
    return std::tuple(later(a), largest[b->subgraph], a->subgraph, b->bytes) <
           std::tuple(later(b), largest[a->subgraph], b->subgraph, a->bytes);
  });
  std::vector<std::uint64_t> bytes(static_cast<std::size_t>(sets), 0);
  for (Part* part : order) {
    const auto least = std::min_element(bytes.begin(), bytes.end());
    part->set = static_cast<int>(least - bytes.begin());
    *least += part->bytes;
  }
}

/// Weights that are not compressed are not checked anywhere else, and a single NaN in them spoils all later statistics.
void require_finite(const std::string& name, const at::Tensor& tensor) {
  if (at::isFloatingType(tensor.scalar_type()) && !kernels::all_finite(tensor))
    throw DamagedWeightsError("[output] tensor '{}' holds NaN or infinite values; the checkpoint is damaged", name);
}

}  // namespace

OutputWriter::OutputWriter(const setup::OpenedModel& model, const compression::Assignments& assignments,
                           const std::vector<graph::Subgraph>& subgraphs, const Options& options)
    : model_(model),
      assignments_(assignments),
      subgraphs_(subgraphs),
      options_(options),
      finished_(subgraphs.size(), false) {
  lay_out();
  if (options_.reopen && options_.rank == 0) remove_leftovers();
}

void OutputWriter::lay_out() {
  std::vector<Part> parts = output_parts(model_, assignments_, subgraphs_);
  divide_into_sets(parts, options_.shard_sets, options_.linears_first);
  checkpoint::CheckpointWriter::Options files;
  files.max_shard_bytes = options_.max_shard_bytes;
  files.reopen = options_.reopen;
  files.sets = options_.shard_sets;
  for (int set = 0; set < options_.shard_sets; ++set) files.own.push_back(is_own(set));
  std::vector<checkpoint::TensorSpec> specs;
  for (const Part& part : parts) {
    if (part.linear) {
      set_of_linear_[*part.linear] = part.set;
      if (is_own(part.set))
        own_modules_.insert(model_.traced.graph.module_name(model_.traced.graph.nodes[*part.linear]));
    } else if (part.made) {
      for (const checkpoint::TensorSpec& spec : part.tensors) made_[spec.name] = part.subgraph;
    } else {
      plain_.insert(part.tensors.front().name);
    }
    for (const checkpoint::TensorSpec& spec : part.tensors) {
      specs.push_back(spec);
      announced_.insert(spec.name);
      files.set_of_spec.push_back(part.set);
    }
  }
  writer_ = std::make_unique<checkpoint::CheckpointWriter>(options_.directory, specs, std::move(files));
}

/// All other leftovers of an earlier run are incomplete or will be written again.
void OutputWriter::remove_leftovers() const {
  std::set<std::string> wanted;
  for (const std::string& name : writer_->file_names()) wanted.insert(name);
  std::vector<std::filesystem::path> leftovers;
  for (const auto& entry : std::filesystem::directory_iterator(options_.directory)) {
    const std::string name = entry.path().filename().string();
    if (wanted.count(name) == 0 && !Journal::is_file_name(name) && !name.starts_with(kScratchName))
      leftovers.push_back(entry.path());
  }
  for (const std::filesystem::path& path : leftovers) std::filesystem::remove_all(path);
}

void OutputWriter::remove_scratch(const std::filesystem::path& directory) {
  std::error_code ignored;
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::directory_iterator(directory, ignored))
    if (entry.path().filename().string().starts_with(kScratchName)) files.push_back(entry.path());
  for (const std::filesystem::path& file : files) std::filesystem::remove(file, ignored);
}

namespace {

/// Whether the record's module reports are readable.
bool has_reports(const Json& record) {
  const auto modules = record.find("modules");
  if (modules == record.end() || !modules->is_array()) return false;
  try {
    for (const Json& module : *modules) (void)compression::ModuleReport::from_json(module);
  } catch (const std::exception&) {
    return false;
  }
  return true;
}

}  // namespace

std::set<std::string> OutputWriter::made_names(std::size_t index) const {
  std::set<std::string> names;
  for (const auto& [name, subgraph] : made_)
    if (subgraph == index) names.insert(name);
  for (const graph::NodeId n : subgraphs_[index].nodes)
    if (const auto assigned = assignments_.linears.find(n); assigned != assignments_.linears.end())
      for (const checkpoint::TensorSpec& spec : compressed_specs(model_.traced.graph, n, assigned->second))
        names.insert(spec.name);
  return names;
}

/// Whether a record names all tensors that the subgraph's work has made, and besides them only copied tensors that are missing.
bool OutputWriter::names_tensors_of(std::size_t index, const Json& tensors) const {
  std::set<std::string> compressed = made_names(index);
  for (const auto& [name, checksum] : tensors.items())
    if (!checksum.is_string() || (compressed.erase(name) == 0 && plain_.count(name) == 0)) return false;
  return compressed.empty();
}

bool OutputWriter::accept_tensors(std::size_t index, const Json& tensors) {
  if (!names_tensors_of(index, tensors)) return false;
  std::vector<std::string> accepted;
  for (const auto& [name, checksum] : tensors.items()) {
    if (!writer_->owns(name)) {
      writer_->adopt(name, checksum.get<std::string>());
    } else if (!writer_->accept(name, checksum.get<std::string>())) {
      for (const std::string& other : accepted) writer_->retract(other);
      return false;
    }
    accepted.push_back(name);
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
    if (!Journal::has_all_sets(record, options_.shard_sets)) continue;  // some rank had not finished it
    if (has_reports(record) && accept_tensors(index, *tensors)) {
      finished_[index] = true;
      records_[index] = record;
    } else {
      damaged.push_back(subgraphs_[index].name);
    }
  }
  return damaged;
}

void OutputWriter::reject(std::size_t index) {
  const auto record = records_.find(index);
  if (record == records_.end()) return;
  const std::set<std::string> compressed = made_names(index);
  for (const auto& [name, checksum] : record->second["tensors"].items()) {
    writer_->retract(name);
    if (compressed.count(name) == 0) plain_.insert(name);
  }
  records_.erase(record);
  finished_[index] = false;
}

void OutputWriter::start_journal(const Json& header) {
  std::vector<Json> records = {header};
  records[0]["shard_sets"] = options_.shard_sets;
  const bool takes_over = options_.rank == 0;
  if (takes_over)
    for (const auto& [index, record] : records_) records.push_back(record);
  journal_ = std::make_unique<Journal>(options_.directory / Journal::file_name(options_.rank), records);
  if (takes_over) Journal::remove_others(options_.directory);
  committer_ = std::make_unique<SubgraphCommitter>(*writer_, *journal_);
}

void OutputWriter::on_compressed(const graph::Node& node, const quant::QuantizationScheme& scheme,
                                 const compression::CompressedModule& result) {
  const std::string& module = model_.traced.graph.module_name(node);
  if (own_modules_.count(module) == 0) return;
  for (const quant::NamedTensor& part : quant::compress(scheme, result.weight)) {
    written_.push_back(quant::full_name(module, part));
    writer_->write(written_.back(), part.tensor);
  }
  reports_.push_back(result.report);
}

void OutputWriter::on_tensor(const std::string& name, const at::Tensor& parameter) {
  if (!writer_->owns(name)) return;
  written_.push_back(name);
  writer_->write(name, parameter.to(at::kCPU).contiguous());
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
      if (plain_.count(use.name) != 0 && writer_->owns(use.name)) copy(use.name);
  Json record = {{"record", "subgraph"}, {"index", index},          {"name", subgraphs_[index].name},
                 {"boundary", boundary}, {"ranks", options_.ranks}, {"sets", Json::array()}};
  for (int set = options_.rank; set < options_.shard_sets; set += options_.ranks) record["sets"].push_back(set);
  record["tensors"] = Json::object();
  for (const std::string& name : written_) record["tensors"][name] = writer_->checksum(name);
  record["modules"] = Json::array();
  for (const compression::ModuleReport& report : reports_) record["modules"].push_back(report.to_json());
  written_.clear();
  reports_.clear();
  finished_[index] = true;
  records_[index] = record;
  if (committer_) committer_->commit(index, std::move(record));
}

std::optional<std::size_t> OutputWriter::durable_subgraph() {
  return committer_ ? committer_->durable() : std::nullopt;
}

Json OutputWriter::boundary(std::size_t index) const {
  const auto found = records_.find(index);
  if (found == records_.end()) return nullptr;
  const Json& record = found->second;
  if (!record.contains("ranks") || record["ranks"] != options_.ranks) return nullptr;
  if (record.contains("boundary")) return record["boundary"];
  const auto boundaries = record.find("boundaries");
  const std::string rank = std::to_string(options_.rank);
  return boundaries != record.end() && boundaries->contains(rank) ? (*boundaries)[rank] : Json();
}

std::vector<compression::ModuleReport> OutputWriter::reports() const {
  std::vector<compression::ModuleReport> reports;
  for (const auto& [index, record] : records_)
    for (const Json& module : record.at("modules")) {
      compression::ModuleReport report = compression::ModuleReport::from_json(module);
      if (own_modules_.count(report.module) != 0) reports.push_back(std::move(report));
    }
  return reports;
}

void OutputWriter::finish() {
  if (committer_) committer_->finish();
  for (const std::string& name : std::set<std::string>(plain_))
    if (writer_->owns(name)) copy(name);
  writer_->finish();
}

}  // namespace layerpress::output
