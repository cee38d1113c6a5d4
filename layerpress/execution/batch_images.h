#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "layerpress/graph/facts/image_geometry.h"

namespace layerpress::execution {

/// The images of a batch's samples, in the order of the samples.
struct BatchImages {
  graph::ImageGeometry geometry;
  std::vector<std::int64_t> offsets;  ///< samples + 1: sample i has images [offsets[i], offsets[i + 1]); empty: none
  std::vector<std::int64_t> filled_tiles;   ///< for each image, the number of filled tiles, which come first
  std::vector<std::int64_t> aspect_ratios;  ///< for each image, its aspect ratio id
  std::vector<at::Tensor> pixels;           ///< for each image [filled tiles, channels, size, size], on the CPU
  std::vector<at::Tensor> masks;  ///< for each sample uint8 [tokens, images, tiles]: the tiles that a token attends to

  std::int64_t count() const { return offsets.empty() ? 0 : offsets.back(); }
  std::int64_t of_sample(std::size_t sample) const {
    return offsets.empty() ? 0 : offsets.at(sample + 1) - offsets.at(sample);
  }
  /// The number of tokens of samples with images; `token_offsets` as in Batch.
  std::int64_t illustrated_tokens(const std::vector<std::int64_t>& token_offsets) const {
    std::int64_t tokens = 0;
    for (std::size_t i = 0; i + 1 < token_offsets.size(); ++i)
      if (of_sample(i) > 0) tokens += token_offsets[i + 1] - token_offsets[i];
    return tokens;
  }
  /// Numbers of rows of kind kPatches and kVision.
  std::int64_t patch_rows() const { return count() * geometry.tiles * geometry.tile_rows(); }
  std::int64_t vision_rows() const { return count() * geometry.tiles * geometry.patches(); }
};

struct Batch;

/// Row indices that nodes need for images; int64, counted from 0.
struct ImageRows {
  at::Tensor illustrated;    ///< tokens of samples with images
  at::Tensor attending;      ///< bool [illustrated, 1]: whether the token has a tile to attend to
  at::Tensor aspect_ratios;  ///< id of each image

  /// For one image, the rows of filled tiles without padding, and the other rows; counted from the image's first row.
  struct Encoded {
    at::Tensor filled, rest;
  };
  std::vector<Encoded> images;

  /// Tokens that attend to the same vision rows.
  struct Reading {
    at::Tensor queries, keys;
  };
  std::vector<Reading> readings;
};

/// Computes the row indices, on `device`.
ImageRows image_rows(const Batch& batch, at::Device device);

/// The rows of a value that count in statistics: int64, on the CPU; undefined where all of them do. Of tokens those that a loss
/// mask marks. Of vision rows those of tiles that the images fill: no token that attends to a tile attends to the others.
at::Tensor counted_rows(const Batch& batch, graph::Rows rows);
/// The number of rows that count.
std::int64_t count_of_counted_rows(const Batch& batch, graph::Rows rows);
/// The rows of `x` that count.
at::Tensor select_counted_rows(const Batch& batch, graph::Rows rows, const at::Tensor& x);

/// Patches of all images in the encoder's order, [patch rows, channels * patch_size²]. Empty tiles, the row of the
/// class embedding and padding are zero.
at::Tensor unfolded_pixels(const BatchImages& images, const graph::PatchEmbedding& embedding, at::Device device,
                           at::ScalarType dtype);

}  // namespace layerpress::execution
