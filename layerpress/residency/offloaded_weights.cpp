#include "layerpress/residency/offloaded_weights.h"

#include <ATen/ATen.h>
#include <unistd.h>

#include <system_error>
#include <utility>

#include "layerpress/base/error.h"
#include "layerpress/base/text.h"

namespace layerpress::residency {

/// The scratch file of one model, shared by all values in it; removed with the last one.
struct OffloadedWeights::OffloadFile {
  explicit OffloadFile(const std::filesystem::path& path) : file(path, /*keep=*/false) {}
  ~OffloadFile() {
    std::error_code ignored;
    std::filesystem::remove(file.path(), ignored);
  }
  std::mutex mutex;  // guards file
  ScratchFile file;
};

struct OffloadedWeights::OnDisk {
  OnDisk(std::shared_ptr<OffloadFile> home, const at::Tensor& bytes) : scratch(std::move(home)) {
    const std::lock_guard lock(scratch->mutex);
    extent = scratch->file.allocate(bytes.nbytes());
    scratch->file.write(extent, bytes.const_data_ptr());
  }
  ~OnDisk() {
    const std::lock_guard lock(scratch->mutex);
    scratch->file.free(extent);
  }
  std::shared_ptr<OffloadFile> scratch;
  ScratchFile::Extent extent;
};

OffloadedWeights::OffloadedWeights(std::shared_ptr<const checkpoint::Checkpoint> checkpoint,
                                   std::uint64_t memory_budget, std::filesystem::path offload_folder)
    : checkpoint_(std::move(checkpoint)), budget_(memory_budget), folder_(std::move(offload_folder)) {}

OffloadedWeights::~OffloadedWeights() = default;

at::Tensor OffloadedWeights::load(const std::string& name) const {
  const std::lock_guard lock(mutex_);
  const auto found = modified_.find(name);
  if (found == modified_.end()) return checkpoint_->tensor(name);
  const Modified& modified = found->second;
  if (modified.tensor.defined()) return modified.tensor;
  auto pages = [&] {
    const std::lock_guard file_lock(modified.disk->scratch->mutex);
    return modified.disk->scratch->file.map(modified.disk->extent);
  }();
  if (pages == nullptr) return at::empty(modified.shape, modified.dtype);  // an empty tensor
  auto* bytes = const_cast<std::byte*>(pages.get());
  return at::from_blob(
      bytes, modified.shape, [pages = std::move(pages), disk = modified.disk](void*) {},
      at::TensorOptions(modified.dtype));
}

void OffloadedWeights::will_need(const std::string& name) const {
  const std::lock_guard lock(mutex_);
  const auto found = modified_.find(name);
  if (found == modified_.end()) return checkpoint_->will_need(name);
  if (!found->second.disk) return;
  const std::lock_guard file_lock(found->second.disk->scratch->mutex);
  found->second.disk->scratch->file.read_ahead(found->second.disk->extent);
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

void OffloadedWeights::update(const std::string& name, const at::Tensor& value) {
  (void)checkpoint_->spec(name);  // throws for an unknown name
  const at::Tensor host = value.detach().to(at::kCPU).contiguous();
  const std::lock_guard lock(mutex_);
  const auto old = modified_.find(name);
  const std::uint64_t freed = old != modified_.end() && old->second.tensor.defined() ? old->second.tensor.nbytes() : 0;
  const std::uint64_t held = memory_bytes_ - freed;
  Modified modified;
  modified.shape = host.sizes().vec();
  modified.dtype = host.scalar_type();
  if (held <= budget_ && host.nbytes() <= budget_ - held) {
    modified.tensor = host.is_alias_of(value) ? host.clone() : host;  // the caller may modify its tensor
  } else {
    if (folder_.empty())
      throw MemoryError(
          "[offload] '{}': {} of modified parameters are in memory and {} more do not fit; set offload_dir", name,
          format_bytes(held), format_bytes(host.nbytes()));
    if (!scratch_)
      scratch_ = std::make_shared<OffloadFile>(
          folder_ / fmt::format(".layerpress-weights.{}.{}", ::getpid(), static_cast<const void*>(this)));
    modified.disk = std::make_shared<OnDisk>(scratch_, host);
  }
  memory_bytes_ = held + (modified.tensor.defined() ? modified.tensor.nbytes() : 0);
  modified_[name] = std::move(modified);
}

OffloadedWeights::Place OffloadedWeights::place(const std::string& name) const {
  const std::lock_guard lock(mutex_);
  const auto found = modified_.find(name);
  if (found == modified_.end()) return Place::kMapped;
  return found->second.tensor.defined() ? Place::kMemory : Place::kDisk;
}

}  // namespace layerpress::residency
