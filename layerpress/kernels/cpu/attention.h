#pragma once

#include "layerpress/kernels/cpu/pair_product.h"
#include "layerpress/kernels/cpu/table.h"

namespace layerpress::kernels::cpu::LAYERPRESS_ISA {

// Null where the instruction set has no bf16 dot products (no_bf16.cpp).
extern void (*const attention_entry)(const AttentionTask& task);
extern std::int64_t (*const attention_workspace_entry)(std::int64_t length, std::int64_t head_dim);

// Only in instruction sets with bf16 dot products.
extern void (*const attention_product_entry)(const PairProduct& product);
void attention_product_pairs(const PairProduct& product);

void attention_wide(const AttentionTask& task);
std::int64_t attention_wide_workspace(const AttentionTask& task);

}  // namespace layerpress::kernels::cpu::LAYERPRESS_ISA
