#include "layerpress/offloaded_model.h"

#include <ATen/ATen.h>

#include <filesystem>
#include <limits>
#include <map>
#include <memory>
#include <system_error>
#include <utility>

#include "layerpress/base/file.h"
#include "layerpress/base/system/machine.h"
#include "layerpress/base/text.h"
#include "layerpress/checkpoint/companion_files.h"
#include "layerpress/checkpoint/element_types.h"
#include "layerpress/checkpoint/model_location.h"
#include "layerpress/checkpoint/writer.h"
#include "layerpress/output/journal.h"
#include "layerpress/residency/offloaded_weights.h"
#include "layerpress/residency/onload.h"

namespace layerpress {
namespace {

std::uint64_t budget_of(const OffloadOptions& options) {
  if (options.device_map == "disk") return 0;
  if (options.device_map == "cpu") return std::numeric_limits<std::uint64_t>::max();
  if (options.device_map != "auto_offload")
    throw UsageError("[offload] unknown device_map '{}'; choose from auto_offload, cpu, disk", options.device_map);
  return options.memory_budget.empty() ? available_memory() / 2 : parse_bytes(options.memory_budget, "memory_budget");
}

}  // namespace

struct OffloadedModel::State {
  State(std::shared_ptr<const checkpoint::Checkpoint> opened, std::uint64_t budget, const std::string& folder)
      : checkpoint(std::move(opened)), weights(checkpoint, budget, folder) {}

  std::shared_ptr<const checkpoint::Checkpoint> checkpoint;
  residency::OffloadedWeights weights;
};

/// Parameters of one dtype share an Onload, because an Onload has one computing dtype.
struct OffloadedModel::Onloaded::State {
  std::map<std::string, const residency::Onload*> scope_of;
  std::vector<std::unique_ptr<residency::Onload>> scopes;
};

OffloadedModel::Onloaded::Onloaded(std::unique_ptr<State> state) : state_(std::move(state)) {}
OffloadedModel::Onloaded::Onloaded(Onloaded&&) noexcept = default;
OffloadedModel::Onloaded::~Onloaded() = default;

const at::Tensor& OffloadedModel::Onloaded::parameter(const std::string& name) const {
  const auto found = state_->scope_of.find(name);
  if (found == state_->scope_of.end()) throw InternalError("[offload] parameter '{}' is not onloaded", name);
  return found->second->parameter(name);
}

OffloadedModel::OffloadedModel(std::unique_ptr<State> state) : state_(std::move(state)) {}
OffloadedModel::OffloadedModel(OffloadedModel&&) noexcept = default;
OffloadedModel::~OffloadedModel() = default;

const Json& OffloadedModel::config() const { return state_->checkpoint->config(); }

std::vector<std::string> OffloadedModel::names() const { return state_->checkpoint->names(); }

at::Tensor OffloadedModel::parameter(const std::string& name) const { return state_->weights.load(name); }

OffloadedModel::Place OffloadedModel::place(const std::string& name) const {
  (void)state_->checkpoint->spec(name);  // throws for an unknown name
  switch (state_->weights.place(name)) {
    case residency::OffloadedWeights::Place::kMapped:
      return Place::kMapped;
    case residency::OffloadedWeights::Place::kMemory:
      return Place::kMemory;
    case residency::OffloadedWeights::Place::kDisk:
      break;
  }
  return Place::kDisk;
}

void OffloadedModel::update(const std::string& name, const at::Tensor& value) {
  checkpoint::require_storable(value, name, "offload");
  state_->weights.update(name, value);
}

OffloadedModel::Onloaded OffloadedModel::onload(const std::vector<std::string>& names, at::Device device) const {
  if (!device.is_cpu() && !at::hasCUDA())
    throw UsageError("[offload] no CUDA device is available in this build or on this machine; pass at::kCPU");
  std::map<at::ScalarType, std::vector<std::string>> by_dtype;
  for (const std::string& name : names) by_dtype[parameter(name).scalar_type()].push_back(name);
  auto state = std::make_unique<Onloaded::State>();
  for (const auto& [dtype, members] : by_dtype) {
    state->scopes.push_back(
        std::make_unique<residency::Onload>(state_->weights, members, residency::Placement{device, dtype}));
    for (const std::string& name : members) {
      state->scope_of[name] = state->scopes.back().get();
      (void)state->scopes.back()->parameter(name);  // now, because a later update() must not change it
    }
  }
  return Onloaded(std::move(state));
}

void OffloadedModel::save(const std::string& directory, const std::string& max_shard_size) const {
  PendingDirectory::Options target;
  target.marker = output::Journal::kFileName;  // protects an unfinished run with the same output
  PendingDirectory pending(directory, target);
  std::vector<checkpoint::TensorSpec> specs;
  for (const std::string& name : names()) {
    const at::Tensor value = parameter(name);
    specs.push_back({name, value.scalar_type(), value.sizes().vec()});
  }
  const checkpoint::FileDivision division{.max_shard_bytes = parse_bytes(max_shard_size, "max_shard_size")};
  checkpoint::CheckpointWriter writer(pending.path(), checkpoint::safetensors_layout(specs, division), {});
  for (const std::string& name : names()) {
    writer.write(name, parameter(name));
    state_->weights.release(name);
  }
  writer.finish();
  checkpoint::write_companions(*state_->checkpoint, config(), pending.path());
  pending.commit();
}

OffloadedModel load_offloaded_model(const std::string& model, const OffloadOptions& options) {
  const std::uint64_t budget = budget_of(options);
  std::error_code failure;
  if (!options.offload_dir.empty() && !std::filesystem::is_directory(options.offload_dir, failure))
    throw UsageError("[offload] offload_dir: {} is not a directory; name an existing one", options.offload_dir);
  if (options.device_map == "disk" && options.offload_dir.empty())
    throw UsageError("[offload] device_map disk requires an offload_dir");
  return OffloadedModel(std::make_unique<OffloadedModel::State>(
      checkpoint::Checkpoint::open(checkpoint::locate_model(model)), budget, options.offload_dir));
}

}  // namespace layerpress
