#pragma once

#include <cstdint>

#include "layerpress/gguf/architectures/model_config.h"

namespace layerpress::gguf {

/// If the config is made from a file: the entries of its rotary embedding, `rope_theta`, `rope_scaling` and others, from the keys and
/// from the tensors with factors of frequencies. Throws CheckpointError for factors that no way of stretching positions gives.
void state_rope(ModelConfig& config, std::uint32_t head_dim);

}  // namespace layerpress::gguf
