#pragma once

#include "layerpress/importer/exported/exported_graph.h"

namespace layerpress::importer {

/// The node between the projections of an expert: inputs are the outputs [rows, intermediate] of gate and up, or of up
/// alone if experts have no gate.
graph::Aten expert_gate(const ExpertGate& gate, bool gated, std::int64_t intermediate, const std::string& dtype);

}  // namespace layerpress::importer
