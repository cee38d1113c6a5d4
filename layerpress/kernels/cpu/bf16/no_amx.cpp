// bf16 dot products without tiles: AVX-512's kernels as they are.
#include "layerpress/kernels/cpu/attention.h"
#include "layerpress/kernels/cpu/gram.h"
#include "layerpress/kernels/cpu/product.h"

namespace layerpress::kernels::cpu::LAYERPRESS_ISA {

void (*const attention_product_entry)(const PairProduct&) = attention_product_pairs;
void (*const gram_tile_entry)(const GramTile&) = gram_tile_pairs;
void (*const product_tile_entry)(const ProductTile&) = product_tile_pairs;

}  // namespace layerpress::kernels::cpu::LAYERPRESS_ISA
