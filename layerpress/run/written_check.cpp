#include "layerpress/run/written_check.h"

#include "layerpress/setup/quantized_source.h"
#include "layerpress/verification/agreement.h"
#include "layerpress/verification/stored_values.h"

namespace layerpress::run {

verification::Findings check_written(const setup::RunSetup& setup, const std::filesystem::path& folder) {
  verification::Findings findings;
  if (!setup.target->only_file().empty()) return findings;
  try {
    setup::OpenedModel written;
    written.stored = checkpoint::Checkpoint::open(folder);
    written.traced = setup.model.traced;
    setup::find_quantized_weights(written);
    verification::check_config(written, findings);
    verification::check_fused(written, findings);
    verification::check_routers(written, findings);
    for (const auto& [name, weight] : written.quantized) verification::check_scales(*written.stored, weight, findings);
  } catch (const CheckpointError& error) {
    findings.fault("files", folder.string(), error.what());
  }
  return findings;
}

}  // namespace layerpress::run
