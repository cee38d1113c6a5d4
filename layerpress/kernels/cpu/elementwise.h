#pragma once

#include "layerpress/kernels/cpu/table.h"

namespace layerpress::kernels::cpu::LAYERPRESS_ISA {

extern const Elementwise<Bits16> elementwise_bf16;
extern const Elementwise<float> elementwise_f32;
void add_scaled_bf16(const Bits16* x, float factor, Bits16* y, std::int64_t count);
void widen_bf16(const Bits16* x, float* y, std::int64_t count);

}  // namespace layerpress::kernels::cpu::LAYERPRESS_ISA
