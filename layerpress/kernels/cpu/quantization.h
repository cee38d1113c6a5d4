#pragma once

#include "layerpress/kernels/cpu/table.h"

namespace layerpress::kernels::cpu::LAYERPRESS_ISA {

void minimum_maximum(const float* x, std::int64_t count, float* minimum, float* maximum);
void scale_errors(const ScaleErrorTask& task);
void quantize(const float* x, std::int64_t count, float scale, float zero_point, const Codebook& codebook,
              std::int8_t* codes);
double column_block(const ColumnBlockTask& task);

}  // namespace layerpress::kernels::cpu::LAYERPRESS_ISA
