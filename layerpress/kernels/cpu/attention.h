#pragma once

#include "layerpress/kernels/cpu/table.h"

namespace layerpress::kernels::cpu::LAYERPRESS_ISA {

// Null where the instruction set has no bf16 dot products (no_bf16.cpp).
extern void (*const attention_entry)(const AttentionTask& task);
extern std::int64_t (*const attention_workspace_entry)(std::int64_t length, std::int64_t head_dim);

void attention_wide(const AttentionTask& task);
std::int64_t attention_wide_workspace(const AttentionTask& task);

}  // namespace layerpress::kernels::cpu::LAYERPRESS_ISA
