#pragma once

#include <string>

#include "layerpress/data/calibration_set.h"
#include "layerpress/graph/graph.h"

namespace layerpress::setup {

/// Throws DataError, which names the sample and what to do, if a sample of `dataset` has more or fewer tokens than the
/// imported programs of the graph hold for.
void require_lengths(const graph::Graph& graph, const data::CalibrationSet& set, const std::string& dataset);

}  // namespace layerpress::setup
