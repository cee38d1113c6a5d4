#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "layerpress/gguf/blocks/block_type.h"

namespace layerpress::gguf {

/// The values of a weight, fp32 [rows, columns], from its blocks, uint8 [rows, type.row_bytes(columns)] on the CPU. Threads share the
/// rows. Throws InternalError if shapes do not fit the type.
at::Tensor decode_rows(const BlockType& type, const at::Tensor& blocks, std::int64_t columns);

/// Rounds a weight [rows, columns] of any float dtype on the CPU to blocks, uint8 [rows, type.row_bytes(columns)]. `importance`: fp32
/// [columns], or undefined; see BlockType::round. The weight is finite. Threads share the rows, and no row's bytes depend on the
/// others. Throws InternalError if shapes do not fit the type.
at::Tensor round_rows(const BlockType& type, const at::Tensor& weight, const at::Tensor& importance);

}  // namespace layerpress::gguf
