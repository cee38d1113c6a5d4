// The only file that uses NCCL.
#include <ATen/cuda/CUDAContext.h>
#include <c10/util/env.h>
#include <torch/csrc/cuda/nccl.h>

#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>

#include "layerpress/base/error.h"
#include "layerpress/dist/bounded.h"
#include "layerpress/dist/device_backend.h"
#include "layerpress/dist/peers.h"

namespace layerpress::dist {
namespace {

/// c10d's options contain NCCL's configuration, whose layout changes with NCCL's minor version.
bool is_libtorchs_nccl() { return torch::cuda::nccl::version() >> 16 == ((NCCL_MAJOR << 16) | NCCL_MINOR); }

/// Sets variables that c10d and NCCL read when a group is created.
void set_environment(const std::string& interfaces) {
  // Heartbeat finds lost ranks and names them. c10d's watchdog would end the process without a name, after its own
  // time-out. With blocking waits, c10d starts neither the watchdog nor its monitor.
  c10::utils::set_env("TORCH_NCCL_BLOCKING_WAIT", "1");
  // The flight recorder relies on the watchdog to release operations.
  c10::utils::set_env("TORCH_NCCL_TRACE_BUFFER_SIZE", "0");
  // Switches add in a different order, but the same ranks must give the same bytes every time.
  c10::utils::set_env("NCCL_ALGO", "^NVLS,NVLSTree", /*overwrite=*/false);
  // "=" requires exact names instead of prefixes.
  if (!interfaces.empty()) c10::utils::set_env("NCCL_SOCKET_IFNAME", ("=" + interfaces).c_str(), /*overwrite=*/false);
}

}  // namespace

RankDevice describe_device(const at::Device& device) {
  RankDevice description{host_identity(), "", ""};
  if (!device.is_cuda()) {
    description.hindrance = "computes on the CPU";
  } else if (c10::utils::get_env("LAYERPRESS_NCCL") == "0") {
    description.hindrance = "has LAYERPRESS_NCCL=0 in its environment";
  } else if (!is_libtorchs_nccl()) {
    description.hindrance = fmt::format("was built with NCCL {}.{}, and libtorch with another", NCCL_MAJOR, NCCL_MINOR);
  } else {
    const cudaDeviceProp& gpu = *at::cuda::getDeviceProperties(device.index());
    description.address = fmt::format("{:04x}:{:02x}:{:02x}", gpu.pciDomainID, gpu.pciBusID, gpu.pciDeviceID);
  }
  return description;
}

c10::intrusive_ptr<c10d::Backend> make_device_backend(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
                                                      const std::string& interfaces) {
  set_environment(interfaces);
  auto options = c10d::ProcessGroupNCCL::Options::create();
  options->timeout = kForever;
  options->config.blocking = 1;  // connecting waits until it is done, whatever the environment says
  return c10::make_intrusive<c10d::ProcessGroupNCCL>(store, rank, size, options);
}

}  // namespace layerpress::dist
