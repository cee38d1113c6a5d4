#include "layerpress/run/results/written_check.h"

#include "layerpress/setup/opening/quantized_source.h"
#include "layerpress/verification/agreement.h"
#include "layerpress/verification/stored_values.h"

namespace layerpress::run {

verification::Findings check_written(const setup::RunSetup& setup, const std::filesystem::path& folder) {
  verification::Findings findings;
  if (!setup.target->has_config()) return findings;
  try {
    setup::OpenedModel written;
    written.stored = checkpoint::Checkpoint::open(folder);
    setup::find_quantized_weights(written);
    const verification::Subject subject{*written.stored, written.quantized, setup.model.traced};
    verification::check_config(subject, findings);
    verification::check_fused(subject, findings);
    verification::check_routers(subject, findings);
    for (const auto& [name, weight] : written.quantized) verification::check_scales(*written.stored, weight, findings);
  } catch (const CheckpointError& error) {
    findings.fault("files", folder.string(), error.what());
  }
  return findings;
}

}  // namespace layerpress::run
