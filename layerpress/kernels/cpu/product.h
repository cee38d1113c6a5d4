#pragma once

#include "layerpress/kernels/cpu/table.h"

namespace layerpress::kernels::cpu::LAYERPRESS_ISA {

// Null if the instruction set has no bf16 dot products (no_bf16.cpp).
extern void (*const product_pack_entry)(const Bits16* weight, std::int64_t stride, std::int64_t rows,
                                        std::int64_t pairs, std::uint32_t* panel);
extern void (*const product_tile_entry)(const ProductTile& tile);

// Only in instruction sets with bf16 dot products.
void product_tile_pairs(const ProductTile& tile);
/// to[i][j] = from[j * stride + i] of 16 x 16 pairs; `to` is 64-byte aligned.
void transpose_pairs(const std::uint32_t* from, std::int64_t stride, std::uint32_t* to);

void product_round(const ProductResult& result);
void product_gate(const ProductResult& result);

}  // namespace layerpress::kernels::cpu::LAYERPRESS_ISA
