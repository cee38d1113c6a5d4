#pragma once

#include <filesystem>

#include "layerpress/base/progress.h"
#include "layerpress/dist/group.h"
#include "layerpress/plan/run_plan.h"

namespace layerpress::output {

/// Checks that the disk has room for the activations of all ranks that use it, so that a disk that is too small shows
/// now and not hours later. `scratch` is this rank's file; space that an earlier run left there is reused. `shared`:
/// all hosts see the same folder. Throws MemoryError; warns about disks in memory. Collective.
void require_scratch_space(const setup::RunSetup& setup, const plan::RunPlan& plan,
                           const std::filesystem::path& scratch, bool shared, dist::Group& group,
                           const RunControl& control);

}  // namespace layerpress::output
