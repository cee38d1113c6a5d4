#pragma once

#include "layerpress/compression/assignments.h"
#include "layerpress/quant/quantization_config.h"
#include "layerpress/setup/open_model.h"

namespace layerpress::setup {

/// The quantization_config for these assignments: one group per scheme, with the recipe's targets where all readers understand
/// them (with_targets). `ignore` has the other modules that a reader could take for compressed.
quant::QuantizationConfig quantization_config(const OpenedModel& model, const compression::Assignments& assignments);

}  // namespace layerpress::setup
