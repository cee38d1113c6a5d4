#pragma once

#include <optional>

#include "layerpress/importer/lowering.h"

namespace layerpress::importer {

inline constexpr const char* kExperts = "layerpress.experts.default";

/// Adds operators that make a matrix [tokens, experts] of the chosen experts and their weights before each layer's
/// experts that can have nodes of their own.
void add_routing_matrices(ExportedGraph& graph);

/// The experts of a layer as nodes of their own; nothing where their weights or their gate have a form that our nodes
/// do not.
std::optional<LoweredExperts> lower_experts(const ExportedGraph& graph, const Layouts& layouts,
                                            const Lowerings& lowered, const ExportedNode& node);

/// The linear with `count` features from which a choice among `count` was computed, by its value: the nearest one before value
/// `from`; -1 if there is none.
std::int64_t find_logits(const Layouts& layouts, const Lowerings& lowered, std::int64_t from, std::int64_t count);

}  // namespace layerpress::importer
