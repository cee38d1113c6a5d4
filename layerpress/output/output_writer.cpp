#include "layerpress/output/output_writer.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <exception>
#include <filesystem>
#include <optional>
#include <system_error>
#include <utility>

#include "layerpress/base/text.h"
#include "layerpress/kernels/finite.h"
#include "layerpress/output/output_parts.h"
#include "layerpress/quant/block_scheme.h"
#include "layerpress/quant/compressed_weight.h"

namespace layerpress::output {
namespace {

/// Weights that are not compressed are not checked anywhere else, and a single NaN in them spoils all later statistics.
void require_finite(const std::string& name, const at::Tensor& tensor) {
  if (at::isFloatingType(tensor.scalar_type()) && !kernels::all_finite(tensor))
    throw DamagedWeightsError("[output] tensor '{}' holds NaN or infinite values; the checkpoint is damaged", name);
}

/// A format of fp16 values or scales ends at 65504. Only then is the error not finite, or if weights are so large that their squares overflow.
/// In a GGUF it also makes zeros of what is smaller than 6e-8: all weights are lost where the error is 1.
void require_range(const std::string& module, const quant::QuantizationScheme& scheme,
                   const compression::CompressedModule& result) {
  const double error = result.report.weight_error;
  if ((std::isfinite(error) && error < 0.999) || quant::is_unchanged(scheme)) return;
  const at::Tensor values = quant::dequantize(scheme, result.weight, at::kFloat);
  constexpr const char* kInstead = "give it another format, such as BF16 in a GGUF, or leave it out of the targets";
  if (!kernels::all_finite(values))
    throw RecipeError("[output.write] {}: its weights are too large for {}, whose values or scales end at 65504; {}",
                      module, scheme.format, kInstead);
  if (quant::block_type(scheme) != nullptr && !values.any().item<bool>())
    throw RecipeError("[output.write] {}: its weights are so small that all are zero in {}; {}", module, scheme.format,
                      kInstead);
}

}  // namespace

OutputWriter::OutputWriter(const setup::RunSetup& setup, const Options& options)
    : setup_(setup),
      model_(setup.model),
      assignments_(setup.assignments),
      subgraphs_(setup.subgraphs),
      target_(*setup.target),
      options_(options),
      finished_(setup.subgraphs.size(), false) {
  lay_out();
  if (options_.rank == 0 && !setup_.measured_inputs.empty())
    importance_ = std::make_unique<ImportanceOutput>(setup_, options_.importance, options_.directory, options_.reopen);
  if (options_.reopen && options_.rank == 0) remove_leftovers();
}

void OutputWriter::lay_out() {
  const std::vector<OutputPart> parts = output_parts(setup_, {options_.shard_sets, options_.linears_first});
  checkpoint::CheckpointWriter::Options files{.reopen = options_.reopen};
  for (int set = 0; set < options_.shard_sets; ++set) files.own.push_back(is_own(set));
  made_.resize(subgraphs_.size() + 1);
  for (const OutputPart& part : parts) {
    if (part.linear) {
      set_of_linear_[*part.linear] = part.set;
      if (is_own(part.set))
        own_modules_.insert(model_.traced.graph.module_name(model_.traced.graph.nodes[*part.linear]));
    }
    for (const checkpoint::TensorSpec& spec : part.tensors) {
      announced_.insert(spec.name);
      if (part.made) {
        made_[part.subgraph].insert(spec.name);
      } else {
        copies_[part.original].push_back(spec.name);
        plain_.insert(spec.name);
      }
    }
  }
  const checkpoint::CheckpointLayout layout = layout_of(setup_, parts, options_.max_shard_bytes, options_.shard_sets);
  writer_ = std::make_unique<checkpoint::CheckpointWriter>(options_.directory, layout, files);
}

/// All other leftovers of an earlier run are incomplete or will be written again.
void OutputWriter::remove_leftovers() const {
  std::set<std::string> wanted;
  if (importance_) wanted.insert(ImportanceOutput::kFileName);
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

/// Whether a record names all tensors that the subgraph's work has made, and besides them only copied tensors that are missing.
bool OutputWriter::names_tensors_of(std::size_t index, const Json& tensors) const {
  std::set<std::string> missing = made_[index];
  for (const auto& [name, checksum] : tensors.items())
    if (!checksum.is_string() || (missing.erase(name) == 0 && plain_.count(name) == 0)) return false;
  return missing.empty();
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

/// REQUIRES: the subgraph's tensors are accepted. Reverts that if the figures about its inputs cannot be taken over.
bool OutputWriter::accept_importance(std::size_t index, const Json& record) {
  if (!importance_) return true;
  std::set<std::string> modules;
  for (const graph::NodeId n : subgraphs_[index].nodes)
    if (assignments_.linears.count(n) != 0)
      modules.insert(model_.traced.graph.module_name(model_.traced.graph.nodes[n]));
  if (importance_->accept(modules, record.value("importance", Json()))) return true;
  retract_tensors(index, record);
  return false;
}

std::vector<std::string> OutputWriter::accept(const std::vector<Json>& records) {
  std::vector<std::string> damaged;
  for (const Json& record : records) {
    const auto index = json_get_or<std::size_t>(record, "index", "journal", subgraphs_.size());
    const auto tensors = record.find("tensors");
    if (index >= subgraphs_.size() || finished_[index] || tensors == record.end() || !tensors->is_object()) continue;
    if (!Journal::has_all_sets(record, options_.shard_sets)) continue;  // some rank had not finished it
    if (has_reports(record) && accept_tensors(index, *tensors) && accept_importance(index, record)) {
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
  retract_tensors(index, record->second);
  if (importance_) importance_->retract(record->second.value("importance", Json::object()));
  records_.erase(record);
  finished_[index] = false;
}

void OutputWriter::retract_tensors(std::size_t index, const Json& record) {
  for (const auto& [name, checksum] : record.at("tensors").items()) {
    writer_->retract(name);
    if (made_[index].count(name) == 0) plain_.insert(name);
  }
}

void OutputWriter::start_journal(const Json& header) {
  std::vector<Json> records = {header};
  records[0]["shard_sets"] = options_.shard_sets;
  const bool takes_over = options_.rank == 0;
  if (takes_over)
    for (const auto& [index, record] : records_) records.push_back(record);
  journal_ = std::make_unique<Journal>(options_.directory / Journal::file_name(options_.rank), records);
  if (takes_over) Journal::remove_others(options_.directory);
  committer_ = std::make_unique<SubgraphCommitter>([this] { sync(); }, *journal_);
}

void OutputWriter::sync() {
  writer_->sync();
  if (importance_) importance_->sync();
}

void OutputWriter::on_compressed(const graph::Node& node, const quant::QuantizationScheme& scheme,
                                 const compression::CompressedModule& result) {
  const std::string& module = model_.traced.graph.module_name(node);
  if (importance_) importance_->take(module, result.inputs);
  if (own_modules_.count(module) == 0) return;
  require_range(module, scheme, result);
  for (const quant::NamedTensor& part : quant::compress(scheme, result.weight))
    write_tensor(module + "." + part.suffix, part.tensor);
  reports_.push_back(result.report);
}

void OutputWriter::on_tensor(const std::string& name, const at::Tensor& parameter) {
  if (target_.left_out(name) || !writer_->owns(name)) return;
  write_tensor(name, parameter.to(at::kCPU).contiguous());
}

void OutputWriter::write_tensor(const std::string& name, const at::Tensor& value) {
  writer_->write(name, target_.stored(name, value));
  written_.push_back(name);
}

bool OutputWriter::is_missing(const std::string& name) const {
  const auto found = copies_.find(name);
  return found != copies_.end() && plain_.count(found->second.front()) != 0 && writer_->owns(found->second.front());
}

void OutputWriter::copy(const std::string& name) {
  const auto write = [&](const std::string& copied, const at::Tensor& tensor) {
    write_tensor(copied, tensor);
    plain_.erase(copied);
  };
  if (model_.kept.count(name) != 0) {
    for (const quant::NamedTensor& part : model_.quantized.at(name).compressed())
      write(parent_name(name) + "." + part.suffix, part.tensor);
  } else {
    const at::Tensor tensor = model_.checkpoint->tensor(name);
    require_finite(name, tensor);
    for (const std::string& copied : copies_.at(name)) write(copied, tensor);
  }
  model_.checkpoint->release(name);
}

void OutputWriter::on_subgraph_done(std::size_t index, const Json& boundary) {
  for (const graph::NodeId n : subgraphs_[index].nodes)
    for (const graph::WeightUse& use : graph::weights_of(model_.traced.graph.nodes[n].operation))
      if (is_missing(use.name)) copy(use.name);
  Json record = {{"record", "subgraph"}, {"index", index},          {"name", subgraphs_[index].name},
                 {"boundary", boundary}, {"ranks", options_.ranks}, {"sets", Json::array()}};
  for (int set = options_.rank; set < options_.shard_sets; set += options_.ranks) record["sets"].push_back(set);
  record["tensors"] = Json::object();
  for (const std::string& name : written_) record["tensors"][name] = writer_->checksum(name);
  record["modules"] = Json::array();
  for (const compression::ModuleReport& report : reports_) record["modules"].push_back(report.to_json());
  if (importance_) record["importance"] = importance_->take_checksums();
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
  for (const auto& [name, copied] : copies_)
    if (is_missing(name)) copy(name);
  for (const auto& [spec, value] : target_.own_tensors())
    if (writer_->owns(spec.name)) writer_->write(spec.name, value);
  writer_->finish();
  if (importance_) importance_->finish();
}

}  // namespace layerpress::output
