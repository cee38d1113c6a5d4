#include "layerpress/gguf/placed_values.h"

#include <ATen/ATen.h>

#include <algorithm>

namespace layerpress::gguf {
namespace {

at::Tensor transposed(const at::Tensor& value, bool wanted) { return wanted ? value.transpose(-2, -1) : value; }

/// The dimension of a matrix's or a stack's rows.
std::int64_t rows_of(const at::Tensor& value) { return std::max<std::int64_t>(0, value.dim() - 2); }

bool fits(const TiledHeads& heads, std::int64_t size) {
  return heads.keys == 0 || (size > heads.first && (size - heads.first) % heads.count() == 0);
}

/// Applies the order of a place's rows.
at::Tensor with_ordered_rows(const at::Tensor& value, const TensorPlace& place, bool back) {
  const at::Tensor order = value.is_meta() ? at::Tensor() : row_order(place, value.size(0), back);
  return order.defined() ? value.index_select(0, order) : value;
}

}  // namespace

at::Tensor row_order(const TensorPlace& place, std::int64_t rows, bool back) {
  const at::Tensor order = at::arange(rows, at::kLong);
  if (place.paired_heads > 0) {
    const std::int64_t heads = place.paired_heads, half = rows / heads / 2;
    return (back ? order.view({heads, half, 2}) : order.view({heads, 2, half})).transpose(1, 2).reshape({-1});
  }
  const TiledHeads& heads = place.tiled_rows;
  if (heads.keys == 0) return {};
  const at::Tensor tiled = with_tiled_columns(order.slice(0, heads.first), heads, back);
  return at::cat({order.slice(0, 0, heads.first), tiled});
}

at::Tensor with_tiled_columns(const at::Tensor& value, const TiledHeads& heads, bool back) {
  if (heads.keys == 0) return value;
  std::vector<std::int64_t> shape = value.sizes().vec();
  shape.back() = back ? heads.of_key : heads.keys;
  shape.insert(shape.end(), {back ? heads.keys : heads.of_key, value.size(-1) / heads.count()});
  return value.reshape(shape).transpose(-3, -2).reshape(value.sizes());
}

at::Tensor placed(at::Tensor value, const TensorPlace& place) {
  value = transposed(value, place.transposed_first);
  const std::int64_t dim = rows_of(value);
  if (place.rows.count > 0) {
    const std::int64_t part = value.size(dim) / place.rows.parts;
    std::vector<at::Tensor> parts;
    for (std::int64_t p = 0; p < place.rows.parts; ++p)
      parts.push_back(value.narrow(dim, p * part + place.rows.first, place.rows.count));
    value = place.stacked_parts ? at::stack(parts) : at::cat(parts, dim);
  }
  value = transposed(value, place.transposed_last);
  value = with_tiled_columns(with_ordered_rows(value, place, /*back=*/false), place.tiled_columns, /*back=*/false);
  if (place.added != 0) value = value.to(at::kFloat) + place.added;
  if (place.negative_exponential) value = value.to(at::kFloat).exp().neg();
  return place.squeezed ? value.squeeze() : value;
}

bool keeps_rows(const TensorPlace& place) {
  return !place.transposed_first && !place.transposed_last && place.rows == RowRange{} && !place.stacked_parts &&
         place.added == 0 && !place.negative_exponential && !place.squeezed;
}

at::Tensor restored_order(at::Tensor value, const TensorPlace& place) {
  if (place.negative_exponential) value = value.to(at::kFloat).neg().log();
  if (place.added != 0) value = value.to(at::kFloat) - place.added;
  return with_ordered_rows(with_tiled_columns(value, place.tiled_columns, /*back=*/true), place, /*back=*/true);
}

bool is_unchanged(const TensorPlace& place) {
  return keeps_rows(place) && place.paired_heads == 0 && place.tiled_rows.keys == 0 && place.tiled_columns.keys == 0;
}

std::vector<std::int64_t> shape_before(const std::vector<TensorPlace>& places,
                                       const std::vector<std::vector<std::int64_t>>& shapes) {
  const TensorPlace& place = places.front();
  std::vector<std::int64_t> shape = shapes.front();
  if (shape.empty() || shape.size() > 3) return {};
  if (place.paired_heads > 0 && shape[0] % (2 * place.paired_heads) != 0) return {};
  if (!fits(place.tiled_rows, shape[0]) || !fits(place.tiled_columns, shape.back())) return {};
  if (place.squeezed)
    return shape.size() == 2 ? std::vector{shape[0], std::int64_t{1}, shape[1]} : std::vector<std::int64_t>{};
  if (place.rows.count == 0) return shape;
  std::int64_t rows = 0;  // of a part
  for (std::size_t i = 0; i < places.size(); ++i) {
    const TensorPlace& own = places[i];
    if (!own.stacked_parts || shapes[i].size() != 3 || shapes[i][0] != own.rows.parts ||
        shapes[i][own.transposed_last ? 2 : 1] != own.rows.count ||
        shapes[i][own.transposed_last ? 1 : 2] != shape[place.transposed_last ? 1 : 2])
      return {};
    rows += own.rows.count;
  }
  return {place.rows.parts * rows, shape[place.transposed_last ? 1 : 2]};
}

void take_back(const at::Tensor& value, const TensorPlace& place, const at::Tensor& whole) {
  const at::Tensor restored = restored_order(place.squeezed ? value.unsqueeze(1) : value, place);
  const at::Tensor back = transposed(restored, place.transposed_last);
  if (place.rows.count == 0) {
    whole.copy_(back);
    return;
  }
  const std::int64_t part = whole.size(0) / place.rows.parts;
  for (std::int64_t p = 0; p < place.rows.parts; ++p)
    whole.narrow(0, p * part + place.rows.first, place.rows.count).copy_(back[p]);
}

}  // namespace layerpress::gguf
