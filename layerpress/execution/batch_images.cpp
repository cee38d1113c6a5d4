#include "layerpress/execution/batch_images.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <string>

#include "layerpress/execution/batch.h"
#include "layerpress/kernels/layers/vision.h"

namespace layerpress::execution {
namespace {

at::Tensor on_device(const std::vector<std::int64_t>& values, at::Device device) {
  return at::tensor(values, at::kLong).to(device);
}

ImageRows::Encoded encoded_rows(const graph::ImageGeometry& geometry, std::int64_t filled_tiles, at::Device device) {
  std::vector<std::int64_t> filled, rest;
  for (std::int64_t row = 0; row < geometry.tiles * geometry.tile_rows(); ++row) {
    const bool is_filled = row / geometry.tile_rows() < filled_tiles && row % geometry.tile_rows() < geometry.patches();
    (is_filled ? filled : rest).push_back(row);
  }
  return {on_device(filled, device), on_device(rest, device)};
}

/// Vision rows of the tiles for which `chosen` (over all tiles of the sample's images) is not 0; of all tiles if it is
/// 0 everywhere.
std::vector<std::int64_t> vision_rows_of(const std::string& chosen, std::int64_t first_tile, std::int64_t patches) {
  const bool none = std::all_of(chosen.begin(), chosen.end(), [](char one) { return one == 0; });
  std::vector<std::int64_t> rows;
  for (std::size_t tile = 0; tile < chosen.size(); ++tile) {
    if (chosen[tile] == 0 && !none) continue;
    const std::int64_t first = (first_tile + static_cast<std::int64_t>(tile)) * patches;
    for (std::int64_t row = first; row < first + patches; ++row) rows.push_back(row);
  }
  return rows;
}

/// Adds the vision rows that the tokens of one sample attend to. Tokens are counted from `first`.
void add_readings(const BatchImages& images, std::size_t sample, std::int64_t first, at::Device device,
                  ImageRows& rows) {
  const at::Tensor mask = images.masks.at(sample).contiguous();
  const auto* bits = static_cast<const char*>(mask.const_data_ptr());
  const std::int64_t width = images.of_sample(sample) * images.geometry.tiles;
  std::map<std::string, std::vector<std::int64_t>> tokens;  // by their mask row
  for (std::int64_t token = 0; token < mask.size(0); ++token)
    tokens[std::string(bits + token * width, static_cast<std::size_t>(width))].push_back(first + token);
  for (const auto& [chosen, queries] : tokens)
    rows.readings.push_back(
        {on_device(queries, device),
         on_device(vision_rows_of(chosen, images.offsets[sample] * images.geometry.tiles, images.geometry.patches()),
                   device)});
}

}  // namespace

ImageRows image_rows(const Batch& batch, at::Device device) {
  const BatchImages& images = batch.images;
  ImageRows rows;
  std::vector<std::int64_t> illustrated;
  std::vector<at::Tensor> attending{at::empty({0}, at::kBool)};
  for (std::size_t sample = 0; sample + 1 < batch.offsets.size(); ++sample) {
    if (images.of_sample(sample) == 0) continue;
    add_readings(images, sample, static_cast<std::int64_t>(illustrated.size()), device, rows);
    for (std::int64_t token = batch.offsets[sample]; token < batch.offsets[sample + 1]; ++token)
      illustrated.push_back(token);
    attending.push_back(images.masks[sample].flatten(1).any(1));
  }
  rows.illustrated = on_device(illustrated, device);
  rows.attending = at::cat(attending).unsqueeze(1).to(device);
  rows.aspect_ratios = on_device(images.aspect_ratios, device);
  for (const std::int64_t filled : images.filled_tiles)
    rows.images.push_back(encoded_rows(images.geometry, filled, device));
  return rows;
}

at::Tensor counted_rows(const Batch& batch, graph::Rows rows) {
  const BatchImages& images = batch.images;
  if (rows == graph::Rows::kTokens) return batch.counted;
  const auto is_full = [&](std::int64_t filled) { return filled == images.geometry.tiles; };
  if (rows != graph::Rows::kVision || std::all_of(images.filled_tiles.begin(), images.filled_tiles.end(), is_full))
    return {};
  const std::int64_t patches = images.geometry.patches();
  std::vector<std::int64_t> counted;
  for (std::size_t image = 0; image < images.filled_tiles.size(); ++image) {
    const std::int64_t first = static_cast<std::int64_t>(image) * images.geometry.tiles * patches;
    for (std::int64_t row = first; row < first + images.filled_tiles[image] * patches; ++row) counted.push_back(row);
  }
  return at::tensor(counted, at::kLong);
}

std::int64_t count_of_counted_rows(const Batch& batch, graph::Rows rows) {
  if (rows == graph::Rows::kTokens && batch.counted_tokens) return *batch.counted_tokens;
  if (rows != graph::Rows::kVision) return batch.rows(rows);
  const std::vector<std::int64_t>& filled = batch.images.filled_tiles;
  return std::accumulate(filled.begin(), filled.end(), std::int64_t{0}) * batch.images.geometry.patches();
}

at::Tensor select_counted_rows(const Batch& batch, graph::Rows rows, const at::Tensor& x) {
  const at::Tensor counted = counted_rows(batch, rows);
  return counted.defined() ? x.index_select(0, counted.to(x.device())) : x;
}

at::Tensor unfolded_pixels(const BatchImages& images, const graph::PatchEmbedding& embedding, at::Device device,
                           at::ScalarType dtype) {
  const std::int64_t features = embedding.channels * embedding.patch_size * embedding.patch_size;
  if (images.count() == 0) return at::empty({0, features}, at::TensorOptions(dtype).device(device));
  const graph::ImageGeometry& geometry = images.geometry;
  const at::Tensor all = at::zeros({images.count(), geometry.tiles, geometry.tile_rows(), features},
                                   at::TensorOptions(dtype).device(device));
  for (std::int64_t image = 0; image < images.count(); ++image) {
    const at::Tensor& pixels = images.pixels.at(static_cast<std::size_t>(image));
    all.select(0, image)
        .slice(0, 0, pixels.size(0))
        .slice(1, 1, geometry.patches())
        .copy_(kernels::unfold_patches(pixels, geometry.patch_size));
  }
  return all.reshape({images.patch_rows(), features});
}

}  // namespace layerpress::execution
