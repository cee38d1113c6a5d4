#include "layerpress/residency/activation_store.h"

#include <ATen/ATen.h>

#include <system_error>
#include <utility>

#include "layerpress/base/error.h"
#include "layerpress/base/files/checksum.h"
#include "layerpress/base/text.h"

namespace layerpress::residency {

ActivationStore::ActivationStore(std::size_t batches, Options options)
    : batches_(batches), options_(std::move(options)) {}

ActivationStore::~ActivationStore() = default;

void ActivationStore::clear(Slot& slot) {
  if (slot.tensor.defined()) memory_bytes_ -= memory_of(slot.tensor);
  if (slot.on_disk) {
    if (slot.held_by >= 0)
      dropped_but_held_.push_back(slot);
    else
      scratch_->free(slot.extent);
  }
  slot = Slot();
}

std::uint64_t ActivationStore::memory_of(const at::Tensor& tensor) const {
  return options_.copies ? HostCopies::host_bytes(tensor.nbytes()) : tensor.nbytes();
}

void ActivationStore::spill(Slot& slot, const at::Tensor& tensor) {
  if (options_.scratch.empty())
    throw MemoryError(
        "[residency.activations] {} of activations are in memory and {} more do not fit into what was planned for "
        "them; use --sequential-offload-device disk or fewer samples",
        format_bytes(memory_bytes_), format_bytes(tensor.nbytes()));
  if (!scratch_) scratch_ = std::make_unique<ScratchFile>(options_.scratch, /*keep=*/false);
  const at::Tensor bytes = tensor.to(at::kCPU).contiguous();
  slot.shape = bytes.sizes().vec();
  slot.dtype = bytes.scalar_type();
  slot.extent = scratch_->allocate(bytes.nbytes());
  slot.on_disk = true;
  scratch_->write(slot.extent, bytes.const_data_ptr());
  slot.checksum = checksum_of(bytes.const_data_ptr(), bytes.nbytes());
  spilled_bytes_ += bytes.nbytes();
}

void ActivationStore::put(graph::ValueId value, std::size_t batch, at::Tensor tensor) {
  auto& slots = values_[value];
  slots.resize(batches_);
  Slot& slot = slots.at(batch);
  clear(slot);
  const std::uint64_t size = memory_of(tensor);
  if (size <= options_.memory_limit && memory_bytes_ <= options_.memory_limit - size) {
    if (options_.copies) slot.on_host = options_.copies->to_host(tensor);
    slot.tensor = slot.on_host ? slot.on_host->tensor : tensor.to(options_.home);
    memory_bytes_ += size;
  } else {
    spill(slot, tensor);
  }
}

const ActivationStore::Slot& ActivationStore::slot(graph::ValueId value, std::size_t batch) const {
  const auto found = values_.find(value);
  if (found == values_.end()) throw InternalError("[residency.activations] value {} is not stored", value);
  return found->second.at(batch);
}

at::Tensor ActivationStore::get(graph::ValueId value, std::size_t batch) const {
  const Slot& slot = this->slot(value, batch);
  if (slot.on_host) {
    const auto fetched = std::exchange(slot.fetched, std::nullopt);
    return options_.copies->on_device(fetched ? *fetched : options_.copies->to_device(*slot.on_host));
  }
  if (slot.tensor.defined()) return slot.tensor;
  if (!slot.on_disk) throw InternalError("[residency.activations] value {} of batch {} is not stored", value, batch);
  auto pages = scratch_->map(slot.extent);
  auto* bytes = const_cast<std::byte*>(pages.get());
  return at::from_blob(
             bytes, slot.shape, [pages = std::move(pages)](void*) {}, at::TensorOptions(slot.dtype))
      .to(options_.home);
}

void ActivationStore::read_ahead(const std::vector<graph::ValueId>& values, std::size_t batch) const {
  if (options_.copies) options_.copies->pace();
  if (batch >= batches_) return;
  for (const graph::ValueId value : values) {
    const auto found = values_.find(value);
    if (found == values_.end()) continue;
    const Slot& slot = found->second[batch];
    if (slot.on_disk) scratch_->read_ahead(slot.extent);
    if (slot.on_host && !slot.fetched) slot.fetched = options_.copies->to_device(*slot.on_host);
  }
}

void ActivationStore::drop(graph::ValueId value, std::size_t batch) {
  const auto found = values_.find(value);
  if (found != values_.end()) clear(found->second.at(batch));
}

void ActivationStore::drop(graph::ValueId value) {
  const auto found = values_.find(value);
  if (found == values_.end()) return;
  for (Slot& slot : found->second) clear(slot);
  values_.erase(found);
}

Json ActivationStore::boundary(std::size_t index, const std::vector<graph::ValueId>& values) {
  if (batches_ == 0) return nullptr;
  Json described = Json::object();
  for (const graph::ValueId value : values)
    for (std::size_t batch = 0; batch < batches_; ++batch) {
      const Slot& slot = this->slot(value, batch);
      if (!slot.on_disk) return nullptr;
      described[std::to_string(value)].push_back({{"offset", slot.extent.offset},
                                                  {"length", slot.extent.length},
                                                  {"shape", slot.shape},
                                                  {"dtype", static_cast<int>(slot.dtype)},
                                                  {"checksum", slot.checksum}});
    }
  for (const graph::ValueId value : values)
    for (Slot& slot : values_.at(value)) slot.held_by = static_cast<std::int64_t>(index);
  return described;
}

void ActivationStore::boundary_is_durable(std::size_t index) {
  std::erase_if(dropped_but_held_, [&](const Slot& slot) {
    if (slot.held_by >= static_cast<std::int64_t>(index)) return false;
    scratch_->free(slot.extent);
    return true;
  });
}

/// Claims one described position and checks its bytes; `slot` has the expected shape.
bool ActivationStore::take(const Json& place, Slot& slot) {
  if (!place.is_object()) return false;
  const std::string where = options_.scratch.string();
  slot.extent.offset = json_get<std::uint64_t>(place, "offset", where);
  slot.extent.length = json_get<std::uint64_t>(place, "length", where);
  slot.dtype = static_cast<at::ScalarType>(json_get<int>(place, "dtype", where));
  slot.checksum = json_get<std::string>(place, "checksum", where);
  const bool known = slot.dtype == at::kFloat || slot.dtype == at::kBFloat16 || slot.dtype == at::kHalf;
  if (!known || json_get<std::vector<std::int64_t>>(place, "shape", where) != slot.shape) return false;
  const std::uint64_t size = static_cast<std::uint64_t>(slot.shape[0]) * static_cast<std::uint64_t>(slot.shape[1]) *
                             c10::elementSize(slot.dtype);
  if (size != slot.extent.length || !scratch_->claim(slot.extent)) return false;
  slot.on_disk = true;
  return checksum_of(scratch_->map(slot.extent).get(), size) == slot.checksum;
}

bool ActivationStore::restore(const Json& boundary, const Expected& expected) {
  std::error_code failure;
  if (options_.scratch.empty() || !boundary.is_object() || boundary.size() != expected.shapes.size() ||
      !std::filesystem::exists(options_.scratch, failure))
    return false;
  bool complete = true;
  try {
    scratch_ = std::make_unique<ScratchFile>(options_.scratch, /*keep=*/true);
    for (const auto& [value, shapes] : expected.shapes) {
      const auto described = boundary.find(std::to_string(value));
      complete = complete && described != boundary.end() && described->is_array() && described->size() == batches_;
      values_[value].resize(batches_);
      for (std::size_t batch = 0; complete && batch < batches_; ++batch) {
        Slot& slot = values_[value][batch];
        slot.shape = shapes.at(batch);
        complete = take((*described)[batch], slot);
        slot.held_by = static_cast<std::int64_t>(expected.index);
      }
    }
  } catch (const Error&) {
    complete = false;  // unreadable or different: everything is recomputed
  }
  if (complete) return true;
  values_.clear();
  scratch_.reset();
  return false;
}

}  // namespace layerpress::residency
