#pragma once

#include <filesystem>
#include <map>
#include <string>

#include "layerpress/plan/run_plan.h"
#include "layerpress/setup/run_setup.h"

namespace layerpress::plan {

/// This machine's rates per second, measured in about a second with the run's own kernels, modifiers and threads.
struct MachineRates {
  std::map<std::string, double> flops;  ///< by phase, as in SubgraphPlan::flops
  double forward_bytes = 0;             ///< bytes that norms, activations and sums process
  double read_bytes = 0;                ///< from the model's files, in their current state of caching
  double write_bytes = 0;               ///< to the disk of `output`
};

/// Operations per second of compressing a small group with each of the run's modifiers.
struct ModifierRates {
  std::map<std::string, double> by_phase;  ///< phases as in SubgraphPlan::flops
  double all = 0;                          ///< of all phases together; 0: unknown
};
ModifierRates measure_modifiers(const setup::RunSetup& setup);

/// Waits for the work that was queued on a device. On a CPU nothing is queued.
void finish_queued(at::Device device);

/// `output` is an existing or future folder on the disk to be written.
MachineRates measure_rates(const setup::RunSetup& setup, const std::filesystem::path& output);

/// Seconds that a run takes, measured like measure_rates() if it takes minutes at rough speeds; otherwise 0, because the
/// measurement takes a second.
double planned_seconds(const setup::RunSetup& setup, const RunPlan& plan, const std::filesystem::path& output);

/// Seconds for a subgraph: arithmetic or disk, whichever is slower.
double estimated_seconds(const SubgraphPlan& plan, const MachineRates& rates);

}  // namespace layerpress::plan
