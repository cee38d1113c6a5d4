#pragma once

#include <vector>

#include "layerpress/runtime/group_division.h"
#include "layerpress/runtime/stage_runner.h"

namespace layerpress::runtime {

/// Modifier::compress over the ranks: each compresses its parts, then all get all rows, packed on the way. Every rank returns
/// the same; reports are joined (errors averaged by rows). Collective; "gather" is its phase.
std::vector<CompressedModule> compress_over_ranks(const RunContext& run, const Modifier& modifier,
                                                  const std::vector<LinearWeight>& linears,
                                                  const Statistics* statistics, const GroupDivision& division);

/// Most bytes that the exchange holds beside parts and results.
std::uint64_t exchange_workspace_bytes(const std::vector<LinearShape>& linears, const GroupDivision& division);

}  // namespace layerpress::runtime
