#pragma once

#include <cstdint>

#include "layerpress/gguf/architectures/model_config.h"

namespace layerpress::gguf {

/// If the config is made from a file: the entries of its rotary embedding, `rope_theta`, `rope_scaling` and others, from the keys and
/// from the tensors with factors of frequencies. Throws CheckpointError for factors that no way of stretching positions gives.
/// `otherwise`: what config.json means without them. With `by_layers`, layers with a window are not stretched.
void state_rope(ModelConfig& config, std::uint32_t head_dim, const RopeDefaults& otherwise);

/// By what llama.cpp multiplies queries and keys where yarn stretches positions by `factor` and the file says nothing of it.
double usual_yarn_magnitude(double factor);
/// By what transformers multiplies them, by `attention_factor` or `mscale` and `mscale_all_dim`.
double yarn_magnitude(const RopeConfig& rope);

}  // namespace layerpress::gguf
