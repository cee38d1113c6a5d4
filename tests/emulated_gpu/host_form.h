#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <utility>
#include <vector>

#include "tests/emulated_gpu/device_memory.h"

namespace layerpress::emulated_gpu {

/// An operator's arguments as tensors of the CPU on the same bytes, and its results as tensors of the device. The host has access
/// to the device's memory as long as this exists.
class HostForm {
 public:
  c10::IValue argument(const c10::IValue& value);
  at::Tensor argument(const at::Tensor& tensor);
  c10::IValue result(const c10::IValue& value);
  at::Tensor result(const at::Tensor& tensor);
  /// Operators may have changed the sizes of their arguments.
  void adopt_changes();
  /// Whether an argument is a tensor of the host that is no number.
  bool mixes_devices() const { return on_device_ && on_host_; }

 private:
  at::Tensor on_bytes_of(const at::Tensor& tensor);

  std::vector<std::pair<at::Tensor, at::Tensor>> pairs_;  ///< the argument and its form
  std::vector<HostAccess> access_;
  bool on_device_ = false, on_host_ = false;
};

}  // namespace layerpress::emulated_gpu
