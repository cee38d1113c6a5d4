#include "layerpress/plan/division_rates.h"

#include <ATen/ATen.h>
#include <c10/core/InferenceMode.h>

#include <algorithm>
#include <cstdint>
#include <limits>

#include "layerpress/base/system/machine.h"
#include "layerpress/plan/machine_rates.h"
#include "layerpress/setup/rank_agreement.h"

namespace layerpress::plan {
namespace {

/// Seconds of an all-reduce of `elements` floats: the shortest of some, after one that warms up.
double all_reduce_seconds(std::int64_t elements, at::Device device, dist::Group& group) {
  const at::Tensor tensor = at::zeros({elements}, at::TensorOptions(device).dtype(at::kFloat));
  double shortest = std::numeric_limits<double>::infinity();
  for (int run = 0; run < 4; ++run) {
    finish_queued(device);
    group.barrier();
    const Timer timer;
    group.all_reduce(tensor);
    finish_queued(device);
    if (run > 0) shortest = std::min(shortest, timer.seconds());
  }
  return std::max(shortest, 1e-9);
}

/// The smallest of all ranks' rates, in whole units per second.
double least(double rate, dist::Group& group) {
  return static_cast<double>(setup::agree_on_least(static_cast<std::int64_t>(std::clamp(rate, 1.0, 1e18)), group));
}

}  // namespace

dist::DivisionRates measured_division_rates(const setup::RunSetup& setup, dist::Group& group) {
  const c10::InferenceMode inference;
  dist::DivisionRates rates;
  const double update_flops = measure_modifiers(setup).all;
  if (update_flops > 0) rates.update_flops = update_flops;
  constexpr std::int64_t kElements = 4 << 20;
  const at::Device device = setup.placement.device;
  // An all-reduce is a sum that is sent to one rank and then to all of them.
  rates.operation_seconds = all_reduce_seconds(1, device, group) / 2;
  rates.network_bytes = 2.0 * kElements * sizeof(float) / all_reduce_seconds(kElements, device, group);
  return rates;
}

dist::DivisionRates agreed_division_rates(const setup::RunSetup& setup, dist::Group& group,
                                          const MeasureDivisionRates& measure) {
  if (group.size() == 1 || setup.placement.device.is_cpu()) {
    dist::DivisionRates rates;
    rates.update_flops *= static_cast<double>(setup::agree_on_least(setup.threads, group));
    return rates;
  }
  const dist::DivisionRates rates = measure(setup, group);
  return {.update_flops = least(rates.update_flops, group),
          .network_bytes = least(rates.network_bytes, group),
          .operation_seconds = 1 / least(1 / rates.operation_seconds, group)};
}

}  // namespace layerpress::plan
