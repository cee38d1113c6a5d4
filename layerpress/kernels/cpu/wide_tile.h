#pragma once

#include <cstdint>
#include <cstring>

#include "layerpress/kernels/cpu/table.h"

// Products of fp32 panels, of which all kernels in fp32 arithmetic are made. A value of any stored type is widened when it
// is packed into a panel.
namespace layerpress::kernels::cpu::LAYERPRESS_ISA {

// Registers of this instruction set, and how many rows of a tile's sums they hold beside two or three of columns.
#if defined(__AVX512F__)
constexpr int kWideLanes = 16;
constexpr int kWideRows = 8;
constexpr int kWideRegisters = 3;
#elif defined(__AVX__)
constexpr int kWideLanes = 8;
constexpr int kWideRows = 6;
constexpr int kWideRegisters = 2;
#else
constexpr int kWideLanes = 4;
constexpr int kWideRows = 6;
constexpr int kWideRegisters = 2;
#endif

/// Some floats of one register.
typedef float WideVector __attribute__((vector_size(kWideLanes * sizeof(float))));

inline WideVector load_wide(const float* place) {
  WideVector value;
  std::memcpy(&value, place, sizeof(value));
  return value;
}
inline void store_wide(float* place, WideVector value) { std::memcpy(place, &value, sizeof(value)); }

void wide_tile(const WideTile& tile);
void wide_pack_rows(const StoredRows& rows, std::int64_t depth, std::int64_t width, float* panel);
void wide_pack_columns(const StoredRows& rows, std::int64_t columns, float* panel);
void wide_pack_difference(const StoredRows& minuend, const StoredRows& rows, std::int64_t columns, float* panel);

}  // namespace layerpress::kernels::cpu::LAYERPRESS_ISA
