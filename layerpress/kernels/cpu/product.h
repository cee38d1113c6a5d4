#pragma once

#include "layerpress/kernels/cpu/table.h"

namespace layerpress::kernels::cpu::LAYERPRESS_ISA {

// Null if the instruction set has no bf16 dot products (no_bf16.cpp).
extern void (*const product_pack_entry)(const Bits16* weight, std::int64_t stride, std::int64_t rows,
                                        std::int64_t pairs, std::uint32_t* panel);
extern void (*const product_tile_entry)(const ProductTile& tile);

void product_round(const ProductResult& result);
void product_gate(const ProductResult& result);

}  // namespace layerpress::kernels::cpu::LAYERPRESS_ISA
