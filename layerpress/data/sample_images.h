#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "layerpress/checkpoint/safetensors.h"
#include "layerpress/data/given_embeddings.h"

namespace layerpress::data {

/// The images of one sample: as the checkpoint's processor prepares them for a model whose vision part is in the graph, or as
/// the embeddings that the vision part makes of them.
struct SampleImages {
  GivenEmbeddings embeddings;
  /// For each image, the tiles that it fills [tiles, channels, height, width], floating-point, on the CPU.
  std::vector<at::Tensor> pixels;
  std::vector<std::int64_t> aspect_ratios;  ///< for each image, the id of its tile arrangement, from 1
  /// uint8 [tokens, images, maximum tiles of an image]: 1 where a token attends to a tile. Undefined without images.
  at::Tensor mask;

  std::int64_t count() const { return static_cast<std::int64_t>(aspect_ratios.size()); }
  /// Those of the sample's first `length` tokens. Images stay, also where no token attends to them any more.
  SampleImages cut(std::int64_t length) const {
    return {embeddings.cut(length), pixels, aspect_ratios, mask.defined() ? mask.slice(0, 0, length) : mask};
  }
};

/// The images in a token file (docs/formats.md). Pixels are read when they are used.
class StoredImages {
 public:
  static bool are_in(const checkpoint::SafetensorsFile& file);

  /// `sample_offsets` as in TokenFile. Validates everything except the masks. Throws DataError naming the file and the
  /// fault.
  StoredImages(std::shared_ptr<const checkpoint::SafetensorsFile> file,
               const std::vector<std::int64_t>& sample_offsets);

  /// Throws DataError for a mask with values other than 0 and 1, or with a 1 for a tile that is not filled.
  SampleImages of_sample(std::int64_t sample) const;

 private:
  std::shared_ptr<const checkpoint::SafetensorsFile> file_;
  std::vector<std::int64_t> image_offsets_;  // samples + 1
  std::vector<std::int64_t> mask_offsets_;   // samples + 1: rows of the stored mask
  std::vector<std::int64_t> aspect_ratios_;
  std::vector<std::int64_t> filled_tiles_;
  at::Tensor mask_;
};

/// The tensors that StoredImages reads; empty if no sample has images.
std::map<std::string, at::Tensor> image_tensors(const std::vector<SampleImages>& samples);

}  // namespace layerpress::data
