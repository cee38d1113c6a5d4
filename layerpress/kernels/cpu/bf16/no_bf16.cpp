// Instruction sets without bf16 dot products: callers take the kernels in fp32.
#include "layerpress/kernels/cpu/attention.h"
#include "layerpress/kernels/cpu/gram.h"
#include "layerpress/kernels/cpu/product.h"

namespace layerpress::kernels::cpu::LAYERPRESS_ISA {

void (*const attention_entry)(const AttentionTask&) = nullptr;
std::int64_t (*const attention_workspace_entry)(std::int64_t, std::int64_t) = nullptr;
void (*const gram_pack_entry)(const Bits16*, std::int64_t, std::int64_t, std::int64_t, std::uint32_t*) = nullptr;
void (*const gram_pack_difference_entry)(const Bits16*, const Bits16*, std::int64_t, std::int64_t, std::int64_t,
                                         std::uint32_t*) = nullptr;
void (*const gram_tile_entry)(const GramTile&) = nullptr;
void (*const product_pack_entry)(const Bits16*, std::int64_t, std::int64_t, std::int64_t, std::uint32_t*) = nullptr;
void (*const product_tile_entry)(const ProductTile&) = nullptr;

}  // namespace layerpress::kernels::cpu::LAYERPRESS_ISA
