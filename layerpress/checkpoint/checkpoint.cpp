#include "layerpress/checkpoint/checkpoint.h"

#include <ATen/Functions.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <set>
#include <system_error>

#include "layerpress/checkpoint/element_types.h"
#include "layerpress/checkpoint/quantization_files.h"
#include "layerpress/checkpoint/shard_index.h"
#include "layerpress/checkpoint/strict_json.h"

namespace layerpress::checkpoint {
namespace {

namespace fs = std::filesystem;

constexpr const char* kConfigName = "config.json";

Json read_config(const fs::path& directory) {
  constexpr std::uint64_t kLargestConfig = 16u << 20;
  const fs::path path = directory / kConfigName;
  std::error_code failure;
  const bool exists = fs::exists(path, failure);
  if (failure) throw IoError("[checkpoint.open] {}: {}", path.string(), failure.message());
  if (!exists)
    throw CheckpointError("[checkpoint.open] {}: has no {}; is it a Hugging Face model folder, completely downloaded?",
                          directory.string(), kConfigName);
  Json config = read_json_file(path, kLargestConfig);
  if (!config.is_object())
    throw CheckpointError("[checkpoint.open] {}: is a JSON {}, not an object", path.string(), config.type_name());
  return config;
}

/// config.json's quantization section, searched for in the same places as in vLLM; null if there is none.
Json find_quantization_config(const Json& config) {
  for (const char* key : {"quantization_config", "compression_config"})
    if (json_has(config, key)) return config.at(key);
  const auto text_config = config.find("text_config");
  const bool is_object = text_config != config.end() && text_config->is_object();
  return is_object ? text_config->value("quantization_config", Json()) : Json();
}

void check_holds(const SafetensorsFile& shard, const std::vector<std::string>& tensors) {
  for (const std::string& tensor : tensors)
    if (!shard.contains(tensor))
      throw CheckpointError("[checkpoint.open] {}: lacks tensor {}, which {} places there; download both again",
                            shard.path().string(), in_quotes(tensor), kIndexName);
}

using Entries = std::vector<std::pair<std::string, fs::directory_entry>>;

/// By name, sorted. Of a folder that does not exist: none.
Entries visible_entries(const fs::path& folder) {
  Entries entries;
  std::error_code failure;
  if (!fs::is_directory(folder, failure)) return entries;
  fs::directory_iterator entry(folder, failure);
  for (const fs::directory_iterator end; !failure && entry != end; entry.increment(failure))
    if (const std::string name = entry->path().filename().string(); !name.starts_with('.'))
      entries.emplace_back(name, *entry);
  if (failure) throw IoError("[checkpoint.files] {}: {}", folder.string(), failure.message());
  std::sort(entries.begin(), entries.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  return entries;
}

bool is_file(const fs::directory_entry& entry) {
  std::error_code failure;
  return entry.is_regular_file(failure);
}

bool is_companion(const std::string& name, const fs::directory_entry& entry) {
  return name != kConfigName && !is_weights_name(name) && !is_quantization_file(name) && is_file(entry);
}

}  // namespace

struct Checkpoint::Computation {
  std::vector<Place> parts;
  std::function<at::Tensor()> compute;
  std::uint64_t workspace_bytes = 0;
  std::int64_t sharers = 1;
};

std::shared_ptr<const Checkpoint> Checkpoint::open(const fs::path& directory) {
  std::error_code failure;
  if (!fs::is_directory(directory, failure))
    throw CheckpointError("[checkpoint.open] {}: no such directory", directory.string());
  const std::shared_ptr<Checkpoint> opened(new Checkpoint);
  opened->directory_ = opened->location_ = directory;
  opened->config_ = read_config(directory);
  opened->quantization_config_ = find_quantization_config(opened->config_);
  if (opened->quantization_config_.is_null()) opened->quantization_config_ = read_quantization_file(directory);
  for (const auto& [name, tensors] : find_shards(directory).shards) {
    const auto shard = SafetensorsFile::open(directory / name);
    check_holds(*shard, tensors);
    for (const auto& [tensor, spec] : shard->tensors()) {
      const auto [place, is_new] = opened->places_.emplace(tensor, Place{shard, spec, {}, nullptr});
      if (!is_new)
        throw CheckpointError("[checkpoint.open] {}: tensor {} is also in {}", shard->path().string(),
                              in_quotes(tensor), place->second.file->path().filename().string());
    }
  }
  opened->companions_ = opened->companion_files();
  return opened;
}

std::shared_ptr<const Checkpoint> Checkpoint::in_memory(Json config, const std::map<std::string, at::Tensor>& tensors) {
  const std::shared_ptr<Checkpoint> opened(new Checkpoint);
  opened->config_ = std::move(config);
  opened->quantization_config_ = find_quantization_config(opened->config_);
  for (const auto& [name, tensor] : tensors) {
    require_storable(tensor, name, "checkpoint.memory");
    if (!tensor.device().is_cpu() || !tensor.is_contiguous())
      throw CheckpointError("[checkpoint.memory] tensor {} is {}; move the model to the CPU", in_quotes(name),
                            tensor.device().is_cpu() ? "not contiguous" : "on " + tensor.device().str());
    opened->places_.emplace(name,
                            Place{nullptr, {{name, tensor.scalar_type(), tensor.sizes().vec()}, 0}, tensor, nullptr});
  }
  if (opened->places_.empty()) throw CheckpointError("[checkpoint.memory] the model has no tensors");
  return opened;
}

std::shared_ptr<const Checkpoint> Checkpoint::of_files(const std::vector<OtherFile>& files,
                                                       std::shared_ptr<const TemporaryDirectory> folder, Json config) {
  const std::shared_ptr<Checkpoint> opened(new Checkpoint);
  opened->directory_ = folder->path();
  opened->location_ = files.front().file->path();
  opened->folder_ = std::move(folder);
  opened->config_ = std::move(config);
  for (const OtherFile& each : files) {
    const auto mapped = std::make_shared<const MappedTensors>(each.file);
    for (const StoredTensor& tensor : each.tensors)
      if (!opened->places_.emplace(tensor.name, Place{mapped, tensor, {}, nullptr}).second)
        throw CheckpointError("[checkpoint.open] {}: holds {} twice", each.file->path().string(),
                              in_quotes(tensor.name));
  }
  return opened;
}

std::shared_ptr<const Checkpoint> Checkpoint::unfused(const std::vector<FusedTensor>& fused) const {
  auto changed = std::make_shared<Checkpoint>(*this);
  for (const FusedTensor& whole : fused) {
    if (!contains(whole.name)) continue;
    const Place stored = place(whole.name);
    if (stored.tensor.shape != whole.shape)
      throw CheckpointError("[checkpoint.open] {}: tensor {} has shape {}, config.json implies {}",
                            stored.file ? stored.file->path().string() : "the model in memory", in_quotes(whole.name),
                            stored.tensor.shape, whole.shape);
    if (stored.computed != nullptr)
      throw CheckpointError(
          "[checkpoint.open] {}: {} holds all experts in one quantized tensor, which is not supported",
          location_.string(), in_quotes(whole.name));
    changed->places_.erase(whole.name);
    std::uint64_t offset = stored.tensor.offset;
    for (const FusedTensor::Member& member : whole.members) {
      const StoredTensor part{{member.name, stored.tensor.dtype, member.shape}, offset};
      if (!changed->places_.emplace(member.name, Place{stored.file, part, stored.memory, nullptr}).second)
        throw CheckpointError("[checkpoint.open] {}: holds {} as a tensor and inside {}", location_.string(),
                              in_quotes(member.name), in_quotes(whole.name));
      offset += part.nbytes();
    }
    if (offset != stored.tensor.offset + stored.tensor.nbytes())
      throw InternalError("[checkpoint.open] the members of {} do not cover it", whole.name);
  }
  return changed;
}

std::shared_ptr<const Checkpoint> Checkpoint::with_computed(const std::vector<ComputedTensor>& tensors) const {
  auto changed = std::make_shared<Checkpoint>(*this);
  for (const ComputedTensor& tensor : tensors)
    for (const std::string& part : tensor.parts) changed->places_.erase(part);
  for (const ComputedTensor& tensor : tensors) {
    const auto computation = std::make_shared<Computation>();
    for (const std::string& name : tensor.parts) {
      Place part = place(name);
      if (part.computed != nullptr) {
        computation->parts.insert(computation->parts.end(), part.computed->parts.begin(), part.computed->parts.end());
        computation->sharers = part.computed->sharers;
        continue;
      }
      if (tensor.expert >= 0) {
        std::vector<std::int64_t>& shape = part.tensor.shape;
        if (shape.empty() || tensor.expert >= shape[0])
          throw InternalError("[checkpoint.open] {} has no expert {}", name, tensor.expert);
        shape.erase(shape.begin());
        part.tensor.offset += static_cast<std::uint64_t>(tensor.expert) * part.tensor.nbytes();
      }
      computation->parts.push_back(std::move(part));
    }
    computation->compute = tensor.compute;
    computation->workspace_bytes = tensor.workspace_bytes;
    computation->sharers = std::max(computation->sharers, tensor.sharers);
    Place made;
    static_cast<TensorSpec&>(made.tensor) = tensor.spec;
    made.computed = computation;
    if (!changed->places_.emplace(tensor.spec.name, std::move(made)).second)
      throw CheckpointError("[checkpoint.open] {}: holds {} both on its own and inside {}", location_.string(),
                            in_quotes(tensor.spec.name), in_quotes(tensor.parts.front()));
  }
  return changed;
}

std::shared_ptr<const Checkpoint> Checkpoint::with_tensors_of(const Checkpoint& other,
                                                              const std::vector<std::string>& names) const {
  auto changed = std::make_shared<Checkpoint>(*this);
  for (const std::string& name : names)
    if (!changed->places_.emplace(name, other.place(name)).second)
      throw CheckpointError("[checkpoint.open] {}: holds {} twice", location_.string(), in_quotes(name));
  return changed;
}

std::shared_ptr<const Checkpoint> Checkpoint::with_copies(const std::vector<Copy>& copies) const {
  auto changed = std::make_shared<Checkpoint>(*this);
  for (const auto& [name, of] : copies) {
    Place copy = place(of);
    copy.tensor.name = name;
    changed->places_.insert_or_assign(name, std::move(copy));
  }
  return changed;
}

std::shared_ptr<const Checkpoint> Checkpoint::with_config(const Json& patch) const {
  auto changed = std::make_shared<Checkpoint>(*this);
  changed->config_.merge_patch(patch);
  return changed;
}

std::shared_ptr<const Checkpoint> Checkpoint::without(const std::vector<std::string>& names) const {
  auto changed = std::make_shared<Checkpoint>(*this);
  for (const std::string& name : names) changed->places_.erase(name);
  return changed;
}

const Checkpoint::Place& Checkpoint::place(const std::string& name) const {
  const auto found = places_.find(name);
  if (found == places_.end())
    throw CheckpointError("[checkpoint.tensor] {}: has no tensor {}", location_.string(), in_quotes(name));
  return found->second;
}

const StoredTensor& Checkpoint::spec(const std::string& name) const { return place(name).tensor; }

at::Tensor Checkpoint::tensor(const std::string& name) const {
  const Place& own = place(name);
  if (own.file) return own.file->tensor(own.tensor);
  if (own.computed == nullptr) {
    auto* bytes = static_cast<std::byte*>(own.memory.data_ptr()) + own.tensor.offset;
    return at::from_blob(
        bytes, own.tensor.shape, [memory = own.memory](void*) {}, at::TensorOptions(own.tensor.dtype));
  }
  at::Tensor made = own.computed->compute();
  if (made.scalar_type() != own.tensor.dtype || made.sizes() != c10::IntArrayRef(own.tensor.shape))
    throw InternalError("[checkpoint.tensor] {} was computed with another dtype or shape", name);
  return made;
}

template <typename Function>
void Checkpoint::for_each_part(const std::string& name, Function&& function) const {
  const Place& own = place(name);
  if (own.computed == nullptr) return function(own);
  for (const Place& part : own.computed->parts) function(part);
}

std::vector<StoredTensor> Checkpoint::stored_parts(const std::string& name) const {
  std::vector<StoredTensor> parts;
  for_each_part(name, [&](const Place& part) { parts.push_back(part.tensor); });
  return parts;
}

std::uint64_t Checkpoint::stored_bytes(const std::string& name) const {
  std::uint64_t bytes = 0;
  for_each_part(name, [&](const Place& part) { bytes += part.tensor.nbytes(); });
  const Place& own = place(name);
  return own.computed == nullptr ? bytes : bytes / static_cast<std::uint64_t>(own.computed->sharers);
}

std::uint64_t Checkpoint::workspace_bytes(const std::string& name) const {
  const Place& own = place(name);
  return own.computed == nullptr ? 0 : own.computed->workspace_bytes;
}

void Checkpoint::will_need(const std::string& name) const {
  for_each_part(name, [](const Place& part) {
    if (part.file) part.file->will_need(part.tensor);
  });
}

void Checkpoint::fetch(const std::string& name) const {
  for_each_part(name, [](const Place& part) {
    if (part.file) part.file->fetch(part.tensor);
  });
}

void Checkpoint::release(const std::string& name) const {
  for_each_part(name, [](const Place& part) {
    if (part.file) part.file->release(part.tensor);
  });
}

std::vector<std::string> Checkpoint::names() const {
  std::vector<std::string> names;
  names.reserve(places_.size());
  for (const auto& [name, place] : places_) names.push_back(name);
  return names;
}

std::uint64_t Checkpoint::total_bytes() const {
  std::uint64_t total = 0;
  for (const auto& [name, place] : places_) total += stored_bytes(name);
  return total;
}

std::uint64_t Checkpoint::file_bytes() const {
  std::map<fs::path, std::uint64_t> sizes;
  for (const auto& [name, place] : places_)
    for_each_part(name, [&](const Place& part) {
      if (part.file) sizes[part.file->path()] = part.file->file_bytes();
    });
  std::uint64_t bytes = 0;
  for (const auto& [path, size] : sizes) bytes += size;
  return bytes;
}

std::vector<fs::path> Checkpoint::weight_files() const {
  std::set<fs::path> paths;
  for (const auto& [name, place] : places_)
    for_each_part(name, [&](const Place& part) {
      if (part.file) paths.insert(part.file->path());
    });
  return {paths.begin(), paths.end()};
}

std::vector<fs::path> Checkpoint::companion_files() const {
  if (companions_) return *companions_;
  std::vector<fs::path> files;
  for (const auto& [name, entry] : visible_entries(directory_))
    if (is_companion(name, entry)) files.emplace_back(name);
  for (const auto& [name, entry] : visible_entries(directory_ / kTemplatesFolder))
    if (name.ends_with(".jinja") && is_file(entry)) files.push_back(fs::path(kTemplatesFolder) / name);
  std::sort(files.begin(), files.end());
  return files;
}

std::vector<std::string> Checkpoint::other_entries() const {
  std::set<std::string> own = {kConfigName, kIndexName, kTemplatesFolder};
  for (const fs::path& file : weight_files()) own.insert(file.filename());
  std::vector<std::string> others;
  for (const auto& [name, entry] : visible_entries(directory_))
    if (own.count(name) == 0 && !is_companion(name, entry) && !is_quantization_file(name))
      others.push_back(is_file(entry) ? name : name + "/");
  return others;
}

}  // namespace layerpress::checkpoint
