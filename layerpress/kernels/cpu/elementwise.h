#pragma once

#include "layerpress/kernels/cpu/table.h"

namespace layerpress::kernels::cpu::LAYERPRESS_ISA {

void rms_norm_bf16(const Bits16* x, const Bits16* weight, Bits16* y, std::int64_t rows, std::int64_t size, float eps);
void rms_norm_f32(const float* x, const float* weight, float* y, std::int64_t rows, std::int64_t size, float eps);
void silu_multiply_bf16(const Bits16* a, const Bits16* b, Bits16* y, std::int64_t count);
void silu_multiply_f32(const float* a, const float* b, float* y, std::int64_t count);
void rotary_bf16(const Bits16* x, const float* cosine, const float* sine, Bits16* y, std::int64_t heads,
                 std::int64_t head_dim, std::int64_t pairs);
void rotary_f32(const float* x, const float* cosine, const float* sine, float* y, std::int64_t heads,
                std::int64_t head_dim, std::int64_t pairs);
void squared_difference_bf16(const Bits16* a, const Bits16* b, std::int64_t count, double* difference, double* square);
void squared_difference_f32(const float* a, const float* b, std::int64_t count, double* difference, double* square);
void add_scaled_bf16(const Bits16* x, float factor, Bits16* y, std::int64_t count);
void widen_bf16(const Bits16* x, float* y, std::int64_t count);

}  // namespace layerpress::kernels::cpu::LAYERPRESS_ISA
