#include "layerpress/kernels/cpu/attention.h"
#include "layerpress/kernels/cpu/elementwise.h"
#include "layerpress/kernels/cpu/gram.h"
#include "layerpress/kernels/cpu/product.h"
#include "layerpress/kernels/cpu/quantization.h"
#include "layerpress/kernels/cpu/wide_tile.h"

#define LAYERPRESS_TEXT_OF(name) #name
#define LAYERPRESS_TEXT(name) LAYERPRESS_TEXT_OF(name)

namespace layerpress::kernels::cpu::LAYERPRESS_ISA {

const Table& isa_table() {
  static const Table kTable = {.name = LAYERPRESS_TEXT(LAYERPRESS_ISA),
                               .bf16 = elementwise_bf16,
                               .f32 = elementwise_f32,
                               .add_scaled_bf16 = add_scaled_bf16,
                               .widen_bf16 = widen_bf16,
                               .minimum_maximum = minimum_maximum,
                               .scale_errors = scale_errors,
                               .channel_ranges = channel_ranges,
                               .run_ranges = run_ranges,
                               .round_values = round_values,
                               .quantize = quantize,
                               .dequantize_bf16 = dequantize_bf16,
                               .dequantize_f32 = dequantize_f32,
                               .scale_columns = scale_columns,
                               .column_tile_load = column_tile_load,
                               .column_tile_store = column_tile_store,
                               .column_block_add = column_block_add,
                               .column_block_end = column_block_end,
                               .column_block_try = column_block_try,
                               .attention_bf16 = attention_entry,
                               .attention_workspace = attention_workspace_entry,
                               .attention_wide = attention_wide,
                               .attention_wide_workspace = attention_wide_workspace,
                               .gram_pack = gram_pack_entry,
                               .gram_pack_difference = gram_pack_difference_entry,
                               .gram_tile = gram_tile_entry,
                               .wide_rows = kWideRows,
                               .wide_tile = wide_tile,
                               .wide_pack_rows = wide_pack_rows,
                               .wide_pack_columns = wide_pack_columns,
                               .wide_pack_difference = wide_pack_difference,
                               .product_pack = product_pack_entry,
                               .product_tile = product_tile_entry,
                               .product_round = product_round,
                               .product_gate = product_gate};
  return kTable;
}

}  // namespace layerpress::kernels::cpu::LAYERPRESS_ISA
