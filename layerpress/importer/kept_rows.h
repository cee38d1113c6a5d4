#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "layerpress/importer/exported/layouts.h"
#include "layerpress/importer/regions.h"

namespace layerpress::importer {

/// The values outside of the region of which its result is a sum, each row times a number (graph::Aten::kept_inputs): sums, and
/// products with numbers, one for all or one for each row. Empty if it is anything else.
std::set<std::int64_t> kept_rows(const ExportedGraph& graph, const Layouts& layouts, const Regions& regions,
                                 const Region& region);

/// The values outside of the region that it reads by linears alone (graph::Aten::linear_inputs), perhaps in another dtype, with the
/// weights of these linears; "" of those of which it takes only the type.
std::vector<std::pair<std::int64_t, std::string>> values_of_linears(const ExportedGraph& graph, const Layouts& layouts,
                                                                    const Regions& regions, const Region& region);

}  // namespace layerpress::importer
