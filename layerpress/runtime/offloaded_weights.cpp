#include "layerpress/runtime/offloaded_weights.h"

#include <ATen/ATen.h>
#include <unistd.h>

#include "layerpress/base/error.h"
#include "layerpress/base/text.h"

namespace layerpress::runtime {

OffloadedWeights::OffloadedWeights(std::shared_ptr<const checkpoint::Checkpoint> checkpoint,
                                   std::uint64_t memory_budget, std::filesystem::path offload_folder)
    : checkpoint_(std::move(checkpoint)), budget_(memory_budget), folder_(std::move(offload_folder)) {}

OffloadedWeights::~OffloadedWeights() {
  std::error_code ignored;
  if (scratch_) std::filesystem::remove(scratch_->path(), ignored);
}

ScratchFile& OffloadedWeights::scratch() {
  if (!scratch_)
    scratch_ = std::make_unique<ScratchFile>(
        folder_ / fmt::format(".layerpress-weights.{}.{}", ::getpid(), static_cast<const void*>(this)), /*keep=*/false);
  return *scratch_;
}

at::Tensor OffloadedWeights::load(const std::string& name) const {
  const std::lock_guard lock(mutex_);
  const auto found = modified_.find(name);
  if (found == modified_.end()) return checkpoint_->tensor(name);
  const Modified& modified = found->second;
  if (modified.tensor.defined() || modified.extent.length == 0)
    return modified.tensor.defined() ? modified.tensor : at::empty(modified.shape, modified.dtype);
  auto pages = scratch_->map(modified.extent);
  auto* bytes = const_cast<std::byte*>(pages.get());
  return at::from_blob(
      bytes, modified.shape, [pages = std::move(pages)](void*) {}, at::TensorOptions(modified.dtype));
}

void OffloadedWeights::will_need(const std::string& name) const {
  const std::lock_guard lock(mutex_);
  const auto found = modified_.find(name);
  if (found == modified_.end())
    checkpoint_->will_need(name);
  else if (!found->second.tensor.defined() && found->second.extent.length > 0)
    scratch_->read_ahead(found->second.extent);
}

void OffloadedWeights::fetch(const std::string& name) const {
  if (place(name) == Place::kMapped)
    checkpoint_->fetch(name);
  else
    will_need(name);
}

void OffloadedWeights::release(const std::string& name) const {
  if (place(name) == Place::kMapped) checkpoint_->release(name);
}

void OffloadedWeights::forget(const std::string& name) {
  const auto found = modified_.find(name);
  if (found == modified_.end()) return;
  if (found->second.tensor.defined()) memory_bytes_ -= found->second.tensor.nbytes();
  if (found->second.extent.length > 0) scratch_->free(found->second.extent);
  modified_.erase(found);
}

void OffloadedWeights::update(const std::string& name, const at::Tensor& value) {
  (void)checkpoint_->spec(name);  // throws for a name that is not there
  const at::Tensor host = value.detach().to(at::kCPU).contiguous();
  const std::lock_guard lock(mutex_);
  Modified modified;
  modified.shape = host.sizes().vec();
  modified.dtype = host.scalar_type();
  const auto old = modified_.find(name);
  const std::uint64_t freed = old != modified_.end() && old->second.tensor.defined() ? old->second.tensor.nbytes() : 0;
  const std::uint64_t held = memory_bytes_ - freed;
  if (held <= budget_ && host.nbytes() <= budget_ - held) {
    modified.tensor = host.is_same(value) ? host.clone() : host;
    forget(name);
    memory_bytes_ += modified.tensor.nbytes();
  } else {
    if (folder_.empty())
      throw MemoryError(
          "[offload] '{}': {} of modified parameters are in memory and {} more do not fit; set offload_dir", name,
          format_bytes(held), format_bytes(host.nbytes()));
    modified.extent = scratch().allocate(host.nbytes());
    scratch_->write(modified.extent, host.const_data_ptr());
    forget(name);
  }
  modified_[name] = std::move(modified);
}

OffloadedWeights::Place OffloadedWeights::place(const std::string& name) const {
  const std::lock_guard lock(mutex_);
  const auto found = modified_.find(name);
  if (found == modified_.end()) return Place::kMapped;
  return found->second.tensor.defined() ? Place::kMemory : Place::kDisk;
}

std::uint64_t OffloadedWeights::memory_bytes() const {
  const std::lock_guard lock(mutex_);
  return memory_bytes_;
}

std::uint64_t OffloadedWeights::disk_bytes() const {
  const std::lock_guard lock(mutex_);
  return scratch_ ? scratch_->used() : 0;
}

}  // namespace layerpress::runtime
