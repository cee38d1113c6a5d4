#pragma once

#include <filesystem>

#include "layerpress/base/progress.h"
#include "layerpress/dist/group.h"
#include "layerpress/plan/run_plan.h"

namespace layerpress::output {

/// Makes sure that the disk holds the activations of all ranks that put them on it, so that one that is too small shows now
/// rather than hours later. `scratch` is this rank's file; what an earlier run left there is used again. `shared`: all hosts
/// see the same folder. Throws MemoryError; warns of disks in memory. Collective.
void require_scratch_space(const setup::RunSetup& setup, const plan::RunPlan& plan,
                           const std::filesystem::path& scratch, bool shared, dist::Group& group,
                           const RunControl& control);

}  // namespace layerpress::output
