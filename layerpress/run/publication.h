#pragma once

#include <cstdint>

#include "layerpress/output/output_writer.h"
#include "layerpress/output/run_folder.h"
#include "layerpress/run/compression_run.h"
#include "layerpress/run/rank.h"

namespace layerpress::run {

/// Completes the files of all ranks, puts the folder in the output's place and writes the summary. Collective.
/// `spilled_bytes`: of activations that went to disk.
OneshotSummary publish(Rank& rank, const Work& work, std::uint64_t spilled_bytes, output::RunFolder& folder,
                       output::OutputWriter& output);

/// For an output that is complete already: removes what a run left that was killed at its very end, and says so.
OneshotSummary already_complete(const Rank& rank);

}  // namespace layerpress::run
