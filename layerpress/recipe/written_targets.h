#pragma once

#include <string>
#include <vector>

#include "layerpress/quant/quantization_config.h"

namespace layerpress::recipe {

/// Modules by all names that readers know them by, and the group that each belongs to, or -1.
struct GroupedModules {
  std::vector<quant::ModuleName> modules;
  std::vector<int> groups;
};

/// Groups for a quantization_config, with names. Their targets are the schemes' own where compressed-tensors and vLLM, which
/// decide overlaps by different rules, both find the group that every module belongs to; where they would not, as few groups as
/// possible list their modules' names instead. Groups are in the order given, or in one that makes more of them keep their
/// targets. `ignore` holds the modules without a group.
quant::QuantizationConfig with_targets(const std::vector<quant::QuantizationScheme>& schemes,
                                       const GroupedModules& grouped);

}  // namespace layerpress::recipe
