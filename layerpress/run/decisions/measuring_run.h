#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "layerpress/compression/modifier.h"
#include "layerpress/output/measurement_log.h"
#include "layerpress/plan/run_plan.h"
#include "layerpress/run/compression/calibration.h"
#include "layerpress/run/compression/rank.h"
#include "layerpress/setup/run_setup.h"

namespace layerpress::run {

/// What a run has measured.
struct Measurement {
  std::int64_t samples = 0;  ///< of all ranks
  std::int64_t tokens = 0;
  std::uint64_t planned_bytes = 0;  ///< host memory of this rank
  std::vector<compression::ModuleReport>
      reports;  ///< of all modules, in the order of the model, the same on every rank
};

/// What a part of a measurement takes.
struct MeasuringStep {
  const char* name;
  const setup::RunSetup& setup;
  plan::RunPlan plan;
};
/// Refuses before the measurement what would refuse the run's output after it, such as an earlier run that did not finish. Called by all
/// ranks. Throws UsageError.
void require_output(const OneshotOptions& options, const setup::RunSetup& setup, dist::Group& group);
/// Throws MemoryError if a plan with the least memory exceeds the budgets. `what`: for the message, "what the schemes cost".
void require_memory(const plan::RunPlan& plan, const setup::RunSetup& setup, const char* what);
/// For a plan; estimates the time on this machine. `model`: a file or folder on the disk that is read.
Json report_of(const MeasuringStep& step, const std::string& model);

/// Goes through the model once, as an ordinary run does, but takes figures instead of results: the reports of the setup's
/// quantizers, which give quant::unchanged_scheme(). It writes nothing and leaves nothing behind. `what`: what it measures,
/// for the log. Collective.
Measurement measure(Rank& rank, const setup::RunSetup& setup, const std::string& what, const Calibration& calibration);

/// The same, which releases the data as soon as the batches have copies. It goes on behind the subgraphs whose reports `log` has, and gives it those of
/// the others. REQUIRES: the log is that of this data. Throws CheckpointError for records that are not of this measurement.
Measurement measure(Rank& rank, const setup::RunSetup& setup, const std::string& what, Calibration&& calibration,
                    output::MeasurementLog& log);

/// The log of what is measured on this data before the run that writes the output. Collective.
output::MeasurementLog open_log(const Rank& rank, const setup::RunSetup& setup, const Calibration& calibration);
/// The message of a measurement that was stopped on request.
std::string interruption(const output::MeasurementLog& log);

}  // namespace layerpress::run
