#pragma once

#include <cstdint>

#include "layerpress/output/output_writer.h"
#include "layerpress/output/run_folder.h"
#include "layerpress/run/compression/compression_run.h"
#include "layerpress/run/compression/rank.h"

namespace layerpress::run {

/// Completes the files of all ranks, puts the folder in the output's place and writes the summary. Collective.
/// `spilled_bytes`: bytes of activations that were written to disk.
OneshotSummary publish(Rank& rank, const Work& work, std::uint64_t spilled_bytes, output::RunFolder& folder,
                       output::OutputWriter& output);

/// For an output that is already complete: removes the leftovers of a run that was killed just before its end, and
/// reports it.
OneshotSummary already_complete(const Rank& rank);

}  // namespace layerpress::run
