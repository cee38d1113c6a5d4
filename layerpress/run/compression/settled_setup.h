#pragma once

#include <memory>

#include "layerpress/dist/group.h"
#include "layerpress/oneshot.h"
#include "layerpress/setup/run_setup.h"

namespace layerpress::run {

/// The setup of a run that begins, which nothing changes any more.
struct Settled {
  std::shared_ptr<const setup::RunSetup> setup;
  std::shared_ptr<dist::CoreBinding> binding;  ///< of the threads of a CPU, as long as it exists
};

/// Adds what the machine determines: how ranks exchange data, the memory that this leaves on a GPU, the threads' cores, and the speeds by
/// which ranks divide work. Throws UsageError if ranks were asked for different things. Collective.
Settled settle(setup::RunSetup setup, const OneshotOptions& options, dist::Group& group, const RunControl& control);

}  // namespace layerpress::run
