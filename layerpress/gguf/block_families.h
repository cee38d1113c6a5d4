#pragma once

#include "layerpress/gguf/block_type.h"

namespace layerpress::gguf {

const BlockType& f32_type();
const BlockType& f16_type();
const BlockType& bf16_type();

}  // namespace layerpress::gguf
