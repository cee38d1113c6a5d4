// Replaces device_backend_nccl.cpp where libtorch has no NCCL or its header was not found.
#include "layerpress/base/error.h"
#include "layerpress/dist/device_backend.h"

namespace layerpress::dist {

RankDevice describe_device(const at::Device& device) {
  return {"", "", device.is_cpu() ? "computes on the CPU" : "was built without NCCL"};
}

c10::intrusive_ptr<c10d::Backend> make_device_backend(const c10::intrusive_ptr<c10d::Store>&, int, int,
                                                      const std::string&) {
  throw InternalError("[dist.devices] this program was built without NCCL");
}

}  // namespace layerpress::dist
