#include "layerpress/run/compression/settled_setup.h"

#include <algorithm>
#include <string>
#include <utility>

#include "layerpress/plan/division_rates.h"
#include "layerpress/residency/device_memory.h"
#include "layerpress/setup/rank_agreement.h"

namespace layerpress::run {
namespace {

/// Lets ranks exchange data directly between their GPUs if that is possible, and reports the decision. Returns the GPU memory that is left.
std::uint64_t connect_devices(const setup::RunSetup& setup, const OneshotOptions& options, dist::Group& group,
                              const RunControl& control) {
  if (group.size() == 1 || !setup.pipeline->takes_data) return setup.device_budget;
  const at::Device device = setup.placement.device;
  const std::string hindrance = group.connect_devices(device);
  if (!device.is_cuda()) return setup.device_budget;
  control.message(LogLevel::kInfo, hindrance.empty() ? "sums travel between the GPUs by NCCL"
                                                     : "sums travel through host memory: " + hindrance);
  return options.device_memory_budget.empty() ? std::min(setup.device_budget, residency::free_device_bytes(device))
                                              : setup.device_budget;
}

}  // namespace

Settled settle(setup::RunSetup setup, const OneshotOptions& options, dist::Group& group, const RunControl& control) {
  setup::require_same_request(options, setup, group);
  setup.device_budget = connect_devices(setup, options, group, control);
  std::shared_ptr<dist::CoreBinding> binding =
      setup.placement.device.is_cpu() ? group.bind_threads(setup.threads) : nullptr;
  setup.division_rates = plan::agreed_division_rates(setup, group);
  return {std::make_shared<const setup::RunSetup>(std::move(setup)), std::move(binding)};
}

}  // namespace layerpress::run
