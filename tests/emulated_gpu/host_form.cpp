#include "tests/emulated_gpu/host_form.h"

#include <ATen/core/List.h>
#include <c10/core/Allocator.h>
#include <c10/core/TensorImpl.h>

#include <cstring>

namespace layerpress::emulated_gpu {
namespace {

at::Tensor with_storage(c10::Storage storage, c10::DispatchKey key, const at::Tensor& like) {
  at::Tensor made =
      at::detail::make_tensor<c10::TensorImpl>(std::move(storage), c10::DispatchKeySet(key), like.dtype());
  made.unsafeGetTensorImpl()->set_sizes_and_strides(like.sizes(), like.strides(), like.storage_offset());
  if (like.unsafeGetTensorImpl()->is_wrapped_number()) made.unsafeGetTensorImpl()->set_wrapped_number(true);
  return made;
}

/// Operators may replace it by a larger one.
c10::Storage on_host(void* bytes, std::size_t count) {
  return {c10::Storage::use_byte_size_t(), count, c10::DataPtr(bytes, c10::DeviceType::CPU),
          c10::GetAllocator(c10::DeviceType::CPU), /*resizable=*/true};
}

c10::DataPtr moved_to_device(const c10::Storage& storage) {
  c10::DataPtr memory = DeviceMemory::instance().allocate(storage.nbytes());
  const HostAccess access(memory.get());
  if (storage.nbytes() > 0) std::memcpy(memory.get(), storage.data(), storage.nbytes());
  return memory;
}

bool holds_tensors(const c10::IValue& value) {
  if (!value.isList()) return false;
  const c10::TypePtr element = value.toList().elementType();
  return element->isSubtypeOf(*c10::OptionalType::create(c10::TensorType::get()));
}

}  // namespace

at::Tensor HostForm::on_bytes_of(const at::Tensor& tensor) {
  for (const auto& [own, form] : pairs_)
    if (own.is_same(tensor)) return form;
  void* bytes = const_cast<void*>(tensor.storage().data());
  access_.emplace_back(bytes);
  at::Tensor form = with_storage(on_host(bytes, tensor.storage().nbytes()), c10::DispatchKey::CPU, tensor);
  pairs_.emplace_back(tensor, form);
  return form;
}

at::Tensor HostForm::argument(const at::Tensor& tensor) {
  if (!tensor.defined()) return tensor;
  if (tensor.is_cuda()) {
    on_device_ = true;
    return on_bytes_of(tensor);
  }
  on_host_ |= tensor.dim() > 0;
  pairs_.emplace_back(tensor, tensor);
  return tensor;
}

c10::IValue HostForm::argument(const c10::IValue& value) {
  if (value.isTensor()) return argument(value.toTensor());
  if (value.isDevice()) return c10::Device(c10::DeviceType::CPU);
  if (!holds_tensors(value)) return value;
  c10::impl::GenericList forms(value.toList().elementType());
  for (const c10::IValue& element : value.toListRef()) forms.push_back(argument(element));
  return forms;
}

at::Tensor HostForm::result(const at::Tensor& tensor) {
  if (!tensor.defined()) return tensor;
  for (const auto& [own, form] : pairs_)
    if (form.is_same(tensor)) return own;
  for (const auto& [own, form] : pairs_)
    if (own.is_cuda() && form.storage().is_alias_of(tensor.storage()))
      return with_storage(own.storage(), c10::DispatchKey::CUDA, tensor);
  return with_storage({c10::Storage::use_byte_size_t(), tensor.storage().nbytes(), moved_to_device(tensor.storage()),
                       &DeviceMemory::instance(), /*resizable=*/true},
                      c10::DispatchKey::CUDA, tensor);
}

c10::IValue HostForm::result(const c10::IValue& value) {
  if (value.isTensor()) return result(value.toTensor());
  if (!holds_tensors(value)) return value;
  c10::impl::GenericList results(value.toList().elementType());
  for (const c10::IValue& element : value.toListRef()) results.push_back(result(element));
  return results;
}

void HostForm::adopt_changes() {
  for (const auto& [own, form] : pairs_) {
    if (!own.is_cuda()) continue;
    if (form.storage().data() != own.storage().data()) {
      own.storage().unsafeGetStorageImpl()->set_data_ptr(moved_to_device(form.storage()));
      own.storage().set_nbytes(form.storage().nbytes());
    }
    if (own.sizes() != form.sizes() || own.strides() != form.strides() || own.storage_offset() != form.storage_offset())
      own.unsafeGetTensorImpl()->set_sizes_and_strides(form.sizes(), form.strides(), form.storage_offset());
  }
}

}  // namespace layerpress::emulated_gpu
