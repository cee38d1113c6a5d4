#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "layerpress/gguf/architectures/tensor_names.h"

namespace layerpress::gguf {

/// What becomes of an uncompressed tensor of a checkpoint on the way into a GGUF.
at::Tensor placed(at::Tensor value, const TensorPlace& place);

/// Undoes what `placed` does to single values and to the order of rows and columns.
at::Tensor restored_order(at::Tensor value, const TensorPlace& place);

/// Whether only the order of rows changes, or that of heads along the columns, which blocks allow that fit into a head.
bool keeps_rows(const TensorPlace& place);

/// The order that rows take in the GGUF, or take back; undefined if they stay.
at::Tensor row_order(const TensorPlace& place, std::int64_t rows, bool back);

/// Values [..., columns], or the bytes of their blocks, with heads in the order of the GGUF; or back. `heads`: of any place.
at::Tensor with_tiled_columns(const at::Tensor& value, const TiledHeads& heads, bool back);

/// Whether a tensor of a GGUF, without the dimension of experts, is in the checkpoint as it is.
bool is_unchanged(const TensorPlace& place);

/// The shape in a checkpoint of a tensor that is in a GGUF in these places with these shapes, without the dimension of experts. Empty
/// if they do not fit together.
std::vector<std::int64_t> shape_before(const std::vector<TensorPlace>& places,
                                       const std::vector<std::vector<std::int64_t>>& shapes);

/// Undoes `placed`: writes into `whole`, a tensor of the checkpoint, what `value` has of it.
void take_back(const at::Tensor& value, const TensorPlace& place, const at::Tensor& whole);

}  // namespace layerpress::gguf
