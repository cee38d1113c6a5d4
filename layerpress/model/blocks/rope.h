#pragma once

#include "layerpress/base/json.h"
#include "layerpress/graph/graph.h"
#include "layerpress/model/blocks/decoder_config.h"

namespace layerpress::model {

/// `rope_scaling`, or `rope_parameters` where that says nothing, as transformers 5 reads them; empty: neither.
Json rope_parameters(const Json& config);

/// The rotary table of a config, from `rope_parameters` (transformers 5) or `rope_theta` and `rope_scaling` (earlier
/// versions). Kinds default, linear, dynamic, yarn, llama3 and longrope, as transformers computes them. Throws
/// CheckpointError for others, and for a partial_rotary_factor unless the model's class in transformers `rotates_part` of a head.
graph::RopeTable parse_rope(const Json& config, const DecoderConfig& decoder, bool rotates_part = false);

}  // namespace layerpress::model
