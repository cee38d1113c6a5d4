#pragma once

#include "layerpress/kernels/cpu/table.h"

namespace layerpress::kernels::cpu::LAYERPRESS_ISA {

void minimum_maximum(const float* x, std::int64_t count, float* minimum, float* maximum);
void scale_errors(const ScaleErrorTask& task);
bool channel_ranges(const StoredRows& rows, std::int64_t columns, float* minima, float* maxima);
void run_ranges(const float* x, std::int64_t runs, std::int64_t run, float* minima, float* maxima);
void round_values(const RoundingTask& task);
void quantize(const float* x, const RowScales& row, const ElementType& element, std::int8_t* codes);
void dequantize_bf16(const std::int8_t* codes, const RowScales& row, const ElementType& element, Bits16* values);
void dequantize_f32(const std::int8_t* codes, const RowScales& row, const ElementType& element, float* values);
void scale_columns(const void* x, ValueType x_type, const float* factors, std::int64_t count, void* y,
                   ValueType y_type);
void column_tile_load(const float* weights, std::int64_t rows, std::int64_t columns, const std::int64_t* place,
                      float* tile);
void column_tile_store(const std::int8_t* tile, std::int64_t rows, std::int64_t columns, std::int8_t* codes);
void column_block_add(const ColumnFeedback& earlier, float* running);
double column_block_end(const ColumnBlockTask& task, float* running);
void column_block_try(const ColumnBlockTask& task, const float* running, float* loss);

}  // namespace layerpress::kernels::cpu::LAYERPRESS_ISA
