#include "layerpress/execution/vision_execution.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <variant>

#include "layerpress/base/error.h"
#include "layerpress/kernels/linear.h"
#include "layerpress/kernels/vision.h"

namespace layerpress::execution {
namespace {

/// [rows, features] viewed as [tiles of all images, rows of a tile, features].
at::Tensor by_tile(const at::Tensor& x, std::int64_t patches) {
  const std::int64_t rows = graph::padded_rows(patches);
  return x.view({x.size(0) / rows, rows, x.size(1)});
}

/// A copy of the rows, to be modified in place.
at::Tensor copy_of(const at::Tensor& x) { return x.clone(at::MemoryFormat::Contiguous); }

}  // namespace

at::Tensor VisionExecution::operator()(const graph::PatchEmbedding& op) const {
  const at::Tensor weight = parameters.parameter(op.weight).flatten(1);
  return kernels::linear(context.pixels(op), weight);
}

at::Tensor VisionExecution::operator()(const graph::TileEmbedding& op) const {
  const at::Tensor& x = inputs[0];
  const at::Tensor tiles = at::embedding(parameters.parameter(op.table), context.image_rows().aspect_ratios)
                               .reshape({x.size(0) / graph::padded_rows(op.patches), 1, op.features});
  return (by_tile(x, op.patches) + tiles * parameters.parameter(op.gate).tanh()).reshape(x.sizes());
}

at::Tensor VisionExecution::operator()(const graph::ClassEmbedding& op) const {
  at::Tensor y = copy_of(inputs[0]);
  by_tile(y, op.patches).select(1, 0).copy_(parameters.parameter(op.weight));
  return y;
}

at::Tensor VisionExecution::operator()(const graph::PatchPosition& op) const {
  at::Tensor y = copy_of(inputs[0]);
  const at::Tensor gate = parameters.parameter(op.gate).tanh();
  const at::Tensor patches = by_tile(y, op.patches).slice(1, 0, op.patches);
  patches.add_((1 - gate) * parameters.parameter(op.embedding));
  const at::Tensor& ratios = context.image_rows().aspect_ratios;
  for (std::int64_t image = 0; image < ratios.size(0); ++image) {  // one at a time: the table's rows are long
    const at::Tensor row = parameters.parameter(op.table).index_select(0, ratios.slice(0, image, image + 1));
    patches.slice(0, image * op.tiles, (image + 1) * op.tiles)
        .add_(gate * row.reshape({op.tiles, op.patches, op.features}));
  }
  return y;
}

at::Tensor VisionExecution::operator()(const graph::ZeroPadding& op) const {
  at::Tensor y = copy_of(inputs[0]);
  by_tile(y, op.patches).slice(1, op.patches).zero_();
  return y;
}

at::Tensor VisionExecution::operator()(const graph::VisionAttention& op) const {
  at::Tensor y = at::empty_like(inputs[0], at::MemoryFormat::Contiguous);
  const std::int64_t rows = op.tiles * graph::padded_rows(op.patches);
  const kernels::FullAttentionShape shape{op.heads, op.heads, op.head_dim, op.scale};
  std::int64_t first = 0;
  for (const ImageRows::Encoded& image : context.image_rows().images) {
    const auto of_image = [&](const at::Tensor& x) { return x.slice(0, first, first + rows); };
    const at::Tensor q = of_image(inputs[0]), k = of_image(inputs[1]), v = of_image(inputs[2]);
    at::Tensor mixed = of_image(y);
    mixed.index_copy_(0, image.filled, kernels::full_attention(q.index_select(0, image.filled), k, v, shape));
    mixed.index_copy_(0, image.rest,
                      kernels::full_attention(q.index_select(0, image.rest), k.index_select(0, image.filled),
                                              v.index_select(0, image.filled), shape));
    first += rows;
  }
  return y;
}

at::Tensor VisionExecution::operator()(const graph::Activation& op) const {
  if (op.function == "gelu") return at::gelu(inputs[0]);
  if (op.function == "gelu_tanh") return at::gelu(inputs[0], "tanh");
  if (op.function == "silu") return at::silu(inputs[0]);
  throw InternalError("[execution.activation] unknown function '{}'", op.function);
}

at::Tensor VisionExecution::operator()(const graph::GatedAdd& op) const {
  return inputs[0] + parameters.parameter(op.gate).tanh() * inputs[1];
}

at::Tensor VisionExecution::operator()(const graph::VisionFeatures& op) const {
  const at::Tensor& last = inputs[0];
  const std::int64_t tiles = last.size(0) / graph::padded_rows(op.patches), features = last.size(1);
  const auto others = static_cast<std::int64_t>(inputs.size()) - 1;
  at::Tensor y = at::empty({tiles, op.patches, features * (others + 1)}, last.options());
  y.slice(2, 0, features).copy_(by_tile(last, op.patches).slice(1, 0, op.patches));
  const at::Tensor interleaved = y.slice(2, features).unflatten(2, {features, others});
  for (std::int64_t other = 0; other < others; ++other)
    interleaved.select(3, other).copy_(
        by_tile(inputs[static_cast<std::size_t>(other) + 1], op.patches).slice(1, 0, op.patches));
  return y.reshape({tiles * op.patches, features * (others + 1)});
}

at::Tensor VisionExecution::operator()(const graph::SelectIllustrated&) const {
  return inputs[0].index_select(0, context.image_rows().illustrated);
}

at::Tensor VisionExecution::operator()(const graph::MergeIllustrated&) const {
  return inputs[0].index_copy(0, context.image_rows().illustrated, inputs[1]);
}

at::Tensor VisionExecution::operator()(const graph::CrossAttention& op) const {
  at::Tensor y = at::empty_like(inputs[0], at::MemoryFormat::Contiguous);
  for (const ImageRows::Reading& reading : context.image_rows().readings) {
    const at::Tensor q = inputs[0].index_select(0, reading.queries);
    const at::Tensor k = inputs[1].index_select(0, reading.keys), v = inputs[2].index_select(0, reading.keys);
    y.index_copy_(0, reading.queries, kernels::full_attention(q, k, v, {op.heads, op.kv_heads, op.head_dim, op.scale}));
  }
  return y;
}

at::Tensor VisionExecution::operator()(const graph::MaskUnattending&) const {
  return inputs[0] * context.image_rows().attending;
}

std::uint64_t vision_workspace_bytes(const graph::Node& node, const Batch& batch,
                                     const residency::Placement& placement) {
  const std::uint64_t element = c10::elementSize(placement.dtype);
  const auto bytes = [&](std::int64_t elements) { return static_cast<std::uint64_t>(elements) * element; };
  if (const auto* patches = std::get_if<graph::PatchEmbedding>(&node.operation))
    return bytes(batch.images.patch_rows() * patches->channels * patches->patch_size * patches->patch_size);
  if (const auto* position = std::get_if<graph::PatchPosition>(&node.operation))  // a row of the table, scaled
    return 2 * bytes(position->tiles * position->patches * position->features);
  if (const auto* encoded = std::get_if<graph::VisionAttention>(&node.operation)) {
    // For one image: queries, the result twice, and keys and values of the filled tiles.
    return 5 * bytes(encoded->tiles * graph::padded_rows(encoded->patches) * encoded->heads * encoded->head_dim);
  }
  if (const auto* cross = std::get_if<graph::CrossAttention>(&node.operation)) {
    std::int64_t most = 0;
    for (std::size_t i = 0; i + 1 < batch.offsets.size(); ++i)
      most = std::max(most, batch.images.of_sample(i) * cross->tiles * cross->patches * 2 * cross->kv_heads +
                                3 * (batch.offsets[i + 1] - batch.offsets[i]) * cross->heads);
    return bytes(most * cross->head_dim);
  }
  return 0;
}

double vision_flops(const graph::Node& node, const Batch& batch) {
  const auto product = [](std::int64_t a, std::int64_t b) { return static_cast<double>(a) * static_cast<double>(b); };
  if (const auto* patches = std::get_if<graph::PatchEmbedding>(&node.operation))
    return 2 * product(batch.images.patch_rows(), patches->features) *
           static_cast<double>(patches->channels * patches->patch_size * patches->patch_size);
  if (const auto* encoded = std::get_if<graph::VisionAttention>(&node.operation))
    return 4 * product(batch.images.patch_rows(), encoded->tiles * graph::padded_rows(encoded->patches)) *
           static_cast<double>(encoded->heads * encoded->head_dim);
  if (const auto* cross = std::get_if<graph::CrossAttention>(&node.operation)) {
    double pairs = 0;
    for (std::size_t i = 0; i + 1 < batch.offsets.size(); ++i)
      pairs +=
          product(batch.offsets[i + 1] - batch.offsets[i], batch.images.of_sample(i) * cross->tiles * cross->patches);
    return 4 * pairs * static_cast<double>(cross->heads * cross->head_dim);
  }
  return 0;
}

}  // namespace layerpress::execution
