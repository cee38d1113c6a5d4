// Instruction sets without bf16 dot products offer no fused attention and no Gram tiles; callers use ATen.
#include "layerpress/kernels/cpu/attention.h"
#include "layerpress/kernels/cpu/gram.h"

namespace layerpress::kernels::cpu::LAYERPRESS_ISA {

void (*const attention_entry)(const AttentionTask&) = nullptr;
std::int64_t (*const attention_workspace_entry)(std::int64_t, std::int64_t) = nullptr;
void (*const gram_pack_entry)(const Bits16*, std::int64_t, std::int64_t, std::int64_t, std::uint32_t*) = nullptr;
void (*const gram_pack_difference_entry)(const Bits16*, const Bits16*, std::int64_t, std::int64_t, std::int64_t,
                                         std::uint32_t*) = nullptr;
void (*const gram_tile_entry)(const GramTile&) = nullptr;

}  // namespace layerpress::kernels::cpu::LAYERPRESS_ISA
