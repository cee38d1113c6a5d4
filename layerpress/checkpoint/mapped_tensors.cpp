#include "layerpress/checkpoint/mapped_tensors.h"

#include <ATen/Functions.h>

#include <cstring>

namespace layerpress::checkpoint {

std::int64_t TensorSpec::numel() const {
  std::int64_t count = 1;
  for (const std::int64_t extent : shape) count *= extent;
  return count;
}

std::uint64_t TensorSpec::nbytes() const { return static_cast<std::uint64_t>(numel()) * c10::elementSize(dtype); }

at::Tensor MappedTensors::tensor(const StoredTensor& place) const {
  const std::byte* bytes = file_->data() + place.offset;
  if (place.offset % c10::elementSize(place.dtype) != 0) {
    at::Tensor copy = at::empty(place.shape, place.dtype);
    if (copy.numel() > 0) std::memcpy(copy.mutable_data_ptr(), bytes, place.nbytes());
    return copy;
  }
  const auto keep_mapped = [file = file_](void*) {};
  return at::from_blob(const_cast<std::byte*>(bytes), place.shape, keep_mapped, at::TensorOptions(place.dtype));
}

void MappedTensors::will_need(const StoredTensor& place) const { file_->will_need(place.offset, place.nbytes()); }

void MappedTensors::fetch(const StoredTensor& place) const { file_->fetch(place.offset, place.nbytes()); }

void MappedTensors::release(const StoredTensor& place) const { file_->release(place.offset, place.nbytes()); }

}  // namespace layerpress::checkpoint
