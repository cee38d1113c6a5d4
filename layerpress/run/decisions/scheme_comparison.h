#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "layerpress/compression/modifier.h"
#include "layerpress/run/compression/rank.h"
#include "layerpress/run/compression/settled_setup.h"
#include "layerpress/setup/run_setup.h"

namespace layerpress::run {

/// A measuring run that compares schemes: its one modifier is modifier::Sensitivity.
struct SchemeComparison {
  Settled settled;
  std::vector<const quant::QuantizationScheme*> schemes;  ///< of the candidates, in order; the setup has them

  const setup::RunSetup& setup() const { return *settled.setup; }
};

/// The run for these schemes, with the targets, the group size and the data of the rank's options. A candidate is refused as a run that rounds
/// to it would be. `asks_what_gptq_leaves`: as modifier::Sensitivity has it. Collective. REQUIRES: recipe::check_candidates.
SchemeComparison set_up_comparison(Rank& rank, const std::vector<std::string>& names,
                                   bool asks_what_gptq_leaves = false);

struct MeasuredLinear {
  std::string weight;
  compression::LinearShape shape;
};

/// By module.
using MeasuredLinears = std::map<std::string, MeasuredLinear>;
MeasuredLinears linears_of(const setup::RunSetup& setup);

/// The tensors of a linear in a checkpoint, scales and zero points included, and their bytes.
std::vector<quant::NamedTensorSpec> stored_parts(const quant::QuantizationScheme& scheme,
                                                 const compression::LinearShape& linear);
std::uint64_t stored_bytes(const quant::QuantizationScheme& scheme, const compression::LinearShape& linear);

}  // namespace layerpress::run
