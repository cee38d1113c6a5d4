#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "layerpress/data/sample_images.h"

namespace layerpress::data {

/// A mapped token file. Ids are read and checked on request, so that loaders that divide a file only touch their parts.
class TokenFile {
 public:
  /// Validates everything except the ids. Throws DataError naming the file and the fault.
  explicit TokenFile(const std::filesystem::path& path);

  /// samples + 1 entries, strictly ascending from 0: no sample is empty.
  const std::vector<std::int64_t>& sample_offsets() const { return sample_offsets_; }
  /// The ids at [first, last). REQUIRES: 0 <= first <= last <= sample_offsets().back(). Throws DataError for an invalid
  /// id.
  std::vector<std::int32_t> tokens(std::int64_t first, std::int64_t last) const;
  bool has_loss_mask() const { return loss_mask_.defined(); }
  /// For each of the tokens [first, last), 1 if it counts, otherwise 0. Throws DataError for another value. REQUIRES:
  /// has_loss_mask().
  std::vector<std::uint8_t> loss_mask(std::int64_t first, std::int64_t last) const;
  /// Whether samples have images, and the images of one sample.
  bool has_images() const { return images_ || embeddings_; }
  SampleImages images(std::int64_t sample) const;

 private:
  std::string where_;
  at::Tensor ids_;
  at::Tensor loss_mask_;  // uint8, or undefined
  std::vector<std::int64_t> sample_offsets_;
  std::optional<StoredImages> images_;
  std::optional<StoredEmbeddings> embeddings_;
};

}  // namespace layerpress::data
