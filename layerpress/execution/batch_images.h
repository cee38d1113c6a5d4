#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "layerpress/graph/image_geometry.h"

namespace layerpress::execution {

/// The images of a batch's samples, in the order of the samples.
struct BatchImages {
  graph::ImageGeometry geometry;
  std::vector<std::int64_t> offsets;  ///< samples + 1: sample i has images [offsets[i], offsets[i + 1]); empty: none
  std::vector<std::int64_t> filled_tiles;   ///< of each image; the first ones of geometry.tiles
  std::vector<std::int64_t> aspect_ratios;  ///< of each image, its id
  std::vector<at::Tensor> pixels;           ///< of each image [filled tiles, channels, size, size], on the CPU
  std::vector<at::Tensor> masks;  ///< of each sample uint8 [tokens, images, tiles]: which tiles a token attends to

  std::int64_t count() const { return offsets.empty() ? 0 : offsets.back(); }
  std::int64_t of_sample(std::size_t sample) const {
    return offsets.empty() ? 0 : offsets.at(sample + 1) - offsets.at(sample);
  }
  /// Tokens of samples that have images; `token_offsets` as in Batch.
  std::int64_t illustrated_tokens(const std::vector<std::int64_t>& token_offsets) const {
    std::int64_t tokens = 0;
    for (std::size_t i = 0; i + 1 < token_offsets.size(); ++i)
      if (of_sample(i) > 0) tokens += token_offsets[i + 1] - token_offsets[i];
    return tokens;
  }
  /// Rows of values of kind kPatches and kVision.
  std::int64_t patch_rows() const { return count() * geometry.tiles * geometry.tile_rows(); }
  std::int64_t vision_rows() const { return count() * geometry.tiles * geometry.patches(); }
};

struct Batch;

/// Which rows of which values images concern, as the nodes need them; int64, counted from 0.
struct ImageRows {
  at::Tensor illustrated;    ///< tokens of samples that have images
  at::Tensor attending;      ///< bool [illustrated, 1]: whether the batch gives the token a tile to attend to
  at::Tensor aspect_ratios;  ///< id of each image

  /// Of one image, rows of tiles that it fills, without padding, and the rest; counted from the image's first row.
  struct Encoded {
    at::Tensor filled, rest;
  };
  std::vector<Encoded> images;

  /// Illustrated tokens that attend to the same vision rows.
  struct Reading {
    at::Tensor queries, keys;
  };
  std::vector<Reading> readings;
};

/// Derives them, on `device`.
ImageRows image_rows(const Batch& batch, at::Device device);

/// The rows of a value that count in statistics: int64, on the CPU; undefined where all of them do. Of vision rows those of
/// tiles that the images fill: no token that attends to a tile attends to the others.
at::Tensor counted_rows(const Batch& batch, graph::Rows rows);
/// How many those are.
std::int64_t count_of_counted_rows(const Batch& batch, graph::Rows rows);
/// Those of `x`, a value of such rows.
at::Tensor select_counted_rows(const Batch& batch, graph::Rows rows, const at::Tensor& x);

/// Patches of all images as the encoder takes them, [patch rows, channels * patch_size²]: zeros where a tile is not filled, in
/// the row of the class embedding, and in padding.
at::Tensor unfolded_pixels(const BatchImages& images, const graph::PatchEmbedding& embedding, at::Device device,
                           at::ScalarType dtype);

}  // namespace layerpress::execution
