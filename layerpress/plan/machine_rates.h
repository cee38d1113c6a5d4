#pragma once

#include <filesystem>
#include <map>
#include <string>

#include "layerpress/plan/memory_plan.h"
#include "layerpress/setup/run_setup.h"

namespace layerpress::plan {

/// What this machine does per second, measured in about a second with the run's own kernels, modifiers and threads.
struct MachineRates {
  std::map<std::string, double> flops;  ///< by phase, as in SubgraphPlan::flops
  double forward_bytes = 0;             ///< bytes of values that norms, activations and sums pass over
  double read_bytes = 0;                ///< from the model's files, as they are cached now
  double write_bytes = 0;               ///< to the disk of `output`
};

/// `output`: a folder that exists, or is to be made, on the disk that is written to.
MachineRates measure_rates(const setup::RunSetup& setup, const std::filesystem::path& output);

/// Seconds for a subgraph: arithmetic, or the disk where that is slower.
double estimated_seconds(const SubgraphPlan& plan, const MachineRates& rates);

}  // namespace layerpress::plan
