#pragma once

#include "layerpress/gguf/blocks/block_type.h"

// The types, for block_types.cpp, which lists them.
namespace layerpress::gguf {

const BlockType& f32_type();
const BlockType& f16_type();
const BlockType& bf16_type();

const BlockType& q4_0_type();
const BlockType& q4_1_type();
const BlockType& q5_0_type();
const BlockType& q5_1_type();
const BlockType& q8_0_type();

const BlockType& q2_k_type();
const BlockType& q3_k_type();
const BlockType& q4_k_type();
const BlockType& q5_k_type();
const BlockType& q6_k_type();

const BlockType& iq4_nl_type();
const BlockType& iq4_xs_type();

const BlockType& mxfp4_type();
const BlockType& nvfp4_type();

}  // namespace layerpress::gguf
