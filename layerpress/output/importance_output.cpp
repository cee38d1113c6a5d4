#include "layerpress/output/importance_output.h"

#include <ATen/ATen.h>

#include <utility>

#include "layerpress/gguf/container/file.h"

namespace layerpress::output {
namespace {

/// A matrix of a tensor has a name of its own in the run.
std::string name_of(const gguf::InputPlace& place) { return fmt::format("{}#{}", place.tensor, place.matrix); }

std::string sums_of(const std::string& name) { return name + gguf::kSumsSuffix; }
std::string counts_of(const std::string& name) { return name + gguf::kCountsSuffix; }

/// Places the tensors in the order of their names.
checkpoint::FileLayout importance_layout(const setup::RunSetup& setup, const gguf::ImportanceOrigin& origin) {
  const gguf::BlockType* type = gguf::find_block_type("F32");
  std::map<std::string, const gguf::InputPlace*> whole;
  for (const setup::MeasuredInputs& measured : setup.measured_inputs) whole[measured.place.tensor] = &measured.place;
  std::vector<gguf::TensorInfo> tensors;
  std::map<std::string, std::size_t> index;
  for (const auto& [name, place] : whole) {
    index[name] = tensors.size();
    tensors.push_back({counts_of(name), {place->matrices, 1}, type});
    tensors.push_back({sums_of(name), {place->matrices, place->columns}, type});
  }
  checkpoint::FileLayout file{
      ImportanceOutput::kFileName, 0, gguf::file_header(gguf::importance_metadata(origin), tensors), {}, 0};
  file.size = file.header.size() + (tensors.empty() ? 0 : tensors.back().offset + tensors.back().nbytes());
  for (const setup::MeasuredInputs& measured : setup.measured_inputs) {
    const gguf::InputPlace& place = measured.place;
    const std::size_t first = index.at(place.tensor);
    const auto add = [&](const std::string& name, std::int64_t columns, const gguf::TensorInfo& tensor) {
      const checkpoint::TensorSpec spec{name, at::kFloat, {columns}};
      file.tensors.push_back(
          {spec, file.header.size() + tensor.offset + static_cast<std::uint64_t>(place.matrix) * spec.nbytes()});
    };
    add(counts_of(name_of(place)), 1, tensors[first]);
    add(sums_of(name_of(place)), place.columns, tensors[first + 1]);
  }
  return file;
}

}  // namespace

ImportanceOutput::ImportanceOutput(const setup::RunSetup& setup, const gguf::ImportanceOrigin& origin,
                                   const std::filesystem::path& directory, bool reopen) {
  for (const setup::MeasuredInputs& measured : setup.measured_inputs) {
    const std::string name = name_of(measured.place);
    names_[measured.module].push_back(name);
    places_[name] = measured.place;
    missing_.insert(name);
  }
  writer_ = std::make_unique<checkpoint::CheckpointWriter>(
      directory, checkpoint::CheckpointLayout{{importance_layout(setup, origin)}, /*has_index=*/false},
      checkpoint::CheckpointWriter::Options{.reopen = reopen});
}

void ImportanceOutput::write(const std::string& name, const at::Tensor& values) {
  writer_->write(name, values);
  written_.push_back(name);
}

void ImportanceOutput::take(const std::string& module, const compression::InputSquares& inputs) {
  const auto found = names_.find(module);
  if (found == names_.end() || !inputs.sums.defined()) return;
  const at::Tensor sums = inputs.sums.to(at::kCPU, at::kFloat).view({-1});
  for (const std::string& name : found->second) {
    if (missing_.erase(name) == 0) continue;
    write(sums_of(name), places_.at(name).ordered(sums, /*back=*/false));
    write(counts_of(name), at::full({1}, inputs.tokens, at::kFloat));
  }
}

Json ImportanceOutput::take_checksums() {
  Json checksums = Json::object();
  for (const std::string& name : std::exchange(written_, {})) checksums[name] = writer_->checksum(name);
  return checksums;
}

bool ImportanceOutput::accept(const std::set<std::string>& modules, const Json& checksums) {
  Json accepted = Json::object();
  for (const std::string& module : modules)
    for (const std::string& name : names_.count(module) != 0 ? names_.at(module) : std::vector<std::string>())
      for (const std::string& tensor : {sums_of(name), counts_of(name)}) {
        const auto known = checksums.is_object() ? checksums.find(tensor) : checksums.end();
        if (known == checksums.end() || !known->is_string() || !writer_->accept(tensor, known->get<std::string>())) {
          retract(accepted);
          return false;
        }
        accepted[tensor] = *known;
        missing_.erase(name);
      }
  return true;
}

void ImportanceOutput::retract(const Json& checksums) {
  for (const auto& [tensor, checksum] : checksums.items()) {
    writer_->retract(tensor);
    missing_.insert(tensor.substr(0, tensor.rfind('.')));
  }
}

void ImportanceOutput::finish() {
  for (const std::string& name : missing_) {
    writer_->write(sums_of(name), at::zeros({places_.at(name).columns}));
    writer_->write(counts_of(name), at::zeros({1}));
  }
  writer_->finish();
}

}  // namespace layerpress::output
