#include <ATen/ATen.h>

#include <algorithm>

#include "layerpress/execution/operation_execution.h"
#include "layerpress/kernels/layers/linear.h"
#include "layerpress/kernels/layers/vision.h"

namespace layerpress::execution {
namespace {

/// [rows, features] viewed as [tiles of all images, rows of a tile, features].
at::Tensor by_tile(const at::Tensor& x, std::int64_t patches) {
  const std::int64_t rows = graph::padded_rows(patches);
  return x.view({x.size(0) / rows, rows, x.size(1)});
}

/// A copy of the rows, to be modified in place.
at::Tensor copy_of(const at::Tensor& x) { return x.clone(at::MemoryFormat::Contiguous); }

std::uint64_t bytes(const Workplace& place, std::int64_t elements) {
  return static_cast<std::uint64_t>(elements) * c10::elementSize(place.placement.dtype);
}

double product(std::int64_t a, std::int64_t b) { return static_cast<double>(a) * static_cast<double>(b); }

struct ImageFunctions {
  /// Reads the batch's pixels instead of its input.
  static at::Tensor execute(const graph::PatchEmbedding& op, const NodeRun& run) {
    const at::Tensor weight = run.parameters.parameter(op.weight).flatten(1);
    return kernels::linear(run.context.pixels(op), weight);
  }
  static std::uint64_t workspace_bytes(const graph::PatchEmbedding& op, const NodeShape& shape,
                                       const Workplace& place) {
    return bytes(place, shape.batch.images.patch_rows() * op.channels * op.patch_size * op.patch_size);
  }
  static double flops(const graph::PatchEmbedding& op, const NodeShape& shape) {
    return 2 * product(shape.batch.images.patch_rows(), op.features) *
           static_cast<double>(op.channels * op.patch_size * op.patch_size);
  }

  static at::Tensor execute(const graph::TileEmbedding& op, const NodeRun& run) {
    const at::Tensor& x = run.inputs[0];
    const at::Tensor tiles = at::embedding(run.parameters.parameter(op.table), run.context.image_rows().aspect_ratios)
                                 .reshape({x.size(0) / graph::padded_rows(op.patches), 1, op.features});
    return (by_tile(x, op.patches) + tiles * run.parameters.parameter(op.gate).tanh()).reshape(x.sizes());
  }

  static at::Tensor execute(const graph::ClassEmbedding& op, const NodeRun& run) {
    at::Tensor y = copy_of(run.inputs[0]);
    by_tile(y, op.patches).select(1, 0).copy_(run.parameters.parameter(op.weight));
    return y;
  }

  static at::Tensor execute(const graph::PatchPosition& op, const NodeRun& run) {
    at::Tensor y = copy_of(run.inputs[0]);
    const at::Tensor gate = run.parameters.parameter(op.gate).tanh();
    const at::Tensor patches = by_tile(y, op.patches).slice(1, 0, op.patches);
    patches.add_((1 - gate) * run.parameters.parameter(op.embedding));
    const at::Tensor& ratios = run.context.image_rows().aspect_ratios;
    for (std::int64_t image = 0; image < ratios.size(0); ++image) {  // one at a time: the table's rows are long
      const at::Tensor row = run.parameters.parameter(op.table).index_select(0, ratios.slice(0, image, image + 1));
      patches.slice(0, image * op.tiles, (image + 1) * op.tiles)
          .add_(gate * row.reshape({op.tiles, op.patches, op.features}));
    }
    return y;
  }
  /// A row of the table, scaled.
  static std::uint64_t workspace_bytes(const graph::PatchPosition& op, const NodeShape&, const Workplace& place) {
    return 2 * bytes(place, op.tiles * op.patches * op.features);
  }

  static at::Tensor execute(const graph::ZeroPadding& op, const NodeRun& run) {
    at::Tensor y = copy_of(run.inputs[0]);
    by_tile(y, op.patches).slice(1, op.patches).zero_();
    return y;
  }

  static at::Tensor execute(const graph::VisionAttention& op, const NodeRun& run) {
    at::Tensor y = at::empty_like(run.inputs[0], at::MemoryFormat::Contiguous);
    const std::int64_t rows = op.tiles * graph::padded_rows(op.patches);
    const kernels::AttentionShape shape{op.heads, op.heads, op.head_dim, op.scale};
    std::int64_t first = 0;
    for (const ImageRows::Encoded& image : run.context.image_rows().images) {
      const auto of_image = [&](const at::Tensor& x) { return x.slice(0, first, first + rows); };
      const at::Tensor q = of_image(run.inputs[0]), k = of_image(run.inputs[1]), v = of_image(run.inputs[2]);
      at::Tensor mixed = of_image(y);
      mixed.index_copy_(0, image.filled, kernels::full_attention(q.index_select(0, image.filled), k, v, shape));
      mixed.index_copy_(0, image.rest,
                        kernels::full_attention(q.index_select(0, image.rest), k.index_select(0, image.filled),
                                                v.index_select(0, image.filled), shape));
      first += rows;
    }
    return y;
  }
  /// For one image: queries, the result twice, and keys and values of the filled tiles.
  static std::uint64_t workspace_bytes(const graph::VisionAttention& op, const NodeShape&, const Workplace& place) {
    return 5 * bytes(place, op.tiles * graph::padded_rows(op.patches) * op.heads * op.head_dim);
  }
  static double flops(const graph::VisionAttention& op, const NodeShape& shape) {
    return 4 * product(shape.batch.images.patch_rows(), op.tiles * graph::padded_rows(op.patches)) *
           static_cast<double>(op.heads * op.head_dim);
  }

  static at::Tensor execute(const graph::VisionFeatures& op, const NodeRun& run) {
    const at::Tensor& last = run.inputs[0];
    const std::int64_t tiles = last.size(0) / graph::padded_rows(op.patches), features = last.size(1);
    const auto others = static_cast<std::int64_t>(run.inputs.size()) - 1;
    at::Tensor y = at::empty({tiles, op.patches, features * (others + 1)}, last.options());
    y.slice(2, 0, features).copy_(by_tile(last, op.patches).slice(1, 0, op.patches));
    const at::Tensor interleaved = y.slice(2, features).unflatten(2, {features, others});
    for (std::int64_t other = 0; other < others; ++other)
      interleaved.select(3, other).copy_(
          by_tile(run.inputs[static_cast<std::size_t>(other) + 1], op.patches).slice(1, 0, op.patches));
    return y.reshape({tiles * op.patches, features * (others + 1)});
  }

  static at::Tensor execute(const graph::SelectIllustrated&, const NodeRun& run) {
    return run.inputs[0].index_select(0, run.context.image_rows().illustrated);
  }

  static at::Tensor execute(const graph::MergeIllustrated&, const NodeRun& run) {
    return run.inputs[0].index_copy(0, run.context.image_rows().illustrated, run.inputs[1]);
  }

  static at::Tensor execute(const graph::CrossAttention& op, const NodeRun& run) {
    at::Tensor y = at::empty_like(run.inputs[0], at::MemoryFormat::Contiguous);
    for (const ImageRows::Reading& reading : run.context.image_rows().readings) {
      const at::Tensor q = run.inputs[0].index_select(0, reading.queries);
      const at::Tensor k = run.inputs[1].index_select(0, reading.keys), v = run.inputs[2].index_select(0, reading.keys);
      y.index_copy_(0, reading.queries,
                    kernels::full_attention(q, k, v, {op.heads, op.kv_heads, op.head_dim, op.scale}));
    }
    return y;
  }
  static std::uint64_t workspace_bytes(const graph::CrossAttention& op, const NodeShape& shape,
                                       const Workplace& place) {
    const Batch& batch = shape.batch;
    std::int64_t most = 0;
    for (std::size_t i = 0; i + 1 < batch.offsets.size(); ++i)
      most = std::max(most, batch.images.of_sample(i) * op.tiles * op.patches * 2 * op.kv_heads +
                                3 * (batch.offsets[i + 1] - batch.offsets[i]) * op.heads);
    return bytes(place, most * op.head_dim);
  }
  static double flops(const graph::CrossAttention& op, const NodeShape& shape) {
    const Batch& batch = shape.batch;
    double pairs = 0;
    for (std::size_t i = 0; i + 1 < batch.offsets.size(); ++i)
      pairs += product(batch.offsets[i + 1] - batch.offsets[i], batch.images.of_sample(i) * op.tiles * op.patches);
    return 4 * pairs * static_cast<double>(op.heads * op.head_dim);
  }

  static at::Tensor execute(const graph::MaskUnattending&, const NodeRun& run) {
    return run.inputs[0] * run.context.image_rows().attending;
  }
};

}  // namespace

FamilyExecution executions(graph::ImageOperations family) { return executions_by<ImageFunctions>(family); }

}  // namespace layerpress::execution
