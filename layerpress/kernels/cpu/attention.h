#pragma once

#include "layerpress/kernels/cpu/table.h"

namespace layerpress::kernels::cpu::LAYERPRESS_ISA {

// Null where the instruction set offers no fused attention (no_attention.cpp).
extern void (*const attention_entry)(const AttentionTask& task);
extern std::int64_t (*const attention_workspace_entry)(std::int64_t length, std::int64_t head_dim);

}  // namespace layerpress::kernels::cpu::LAYERPRESS_ISA
