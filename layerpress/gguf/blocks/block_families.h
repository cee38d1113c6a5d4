#pragma once

#include <vector>

#include "layerpress/gguf/blocks/block_type.h"

// The types of each FAMILY_types.cpp, for block_types.cpp.
namespace layerpress::gguf {

std::vector<const BlockType*> float_types();
std::vector<const BlockType*> flat_types();
std::vector<const BlockType*> affine_types();
std::vector<const BlockType*> symmetric_types();
std::vector<const BlockType*> nonlinear_types();
std::vector<const BlockType*> fp4_types();

}  // namespace layerpress::gguf
