#pragma once

#include "layerpress/kernels/cpu/table.h"

namespace layerpress::kernels::cpu::LAYERPRESS_ISA {

// Null if the instruction set has no bf16 dot products (no_bf16.cpp).
extern void (*const gram_pack_entry)(const Bits16* x, std::int64_t tokens, std::int64_t stride, std::int64_t columns,
                                     std::uint32_t* panel);
extern void (*const gram_pack_difference_entry)(const Bits16* a, const Bits16* b, std::int64_t tokens,
                                                std::int64_t stride, std::int64_t columns, std::uint32_t* panel);
extern void (*const gram_tile_entry)(const GramTile& tile);

// Only in instruction sets with bf16 dot products.
void gram_tile_pairs(const GramTile& tile);

}  // namespace layerpress::kernels::cpu::LAYERPRESS_ISA
