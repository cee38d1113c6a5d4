#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "layerpress/checkpoint/safetensors.h"

namespace layerpress::data {

/// What a model's vision part gives its language model for one sample. Empty for a sample without images.
struct GivenEmbeddings {
  at::Tensor places;     ///< int64 [places]: the sample's tokens that have these embeddings, ascending
  at::Tensor values;     ///< [places, features], floating-point, on the CPU
  at::Tensor positions;  ///< int64 [axes, tokens]; undefined: they count from 0
  at::Tensor added{};    ///< [places, layers, features]: what layers add to the hidden state; undefined: nothing
  /// int64 [tokens]: consecutive tokens with one number attend to each other, those with -1 to earlier ones only, as all do
  /// where it is undefined.
  at::Tensor groups{};

  bool are_there() const { return places.defined(); }
  /// Those of the first `length` tokens.
  GivenEmbeddings cut(std::int64_t length) const;
};

/// The embeddings in a token file (docs/formats.md). Values are read when they are used.
class StoredEmbeddings {
 public:
  static bool are_in(const checkpoint::SafetensorsFile& file);

  /// `sample_offsets` as in TokenFile. Validates everything but values. Throws DataError naming the file and the fault.
  StoredEmbeddings(std::shared_ptr<const checkpoint::SafetensorsFile> file, std::vector<std::int64_t> sample_offsets);

  GivenEmbeddings of_sample(std::int64_t sample) const;

 private:
  void check_places(std::size_t sample) const;
  void check_groups(std::size_t sample) const;
  /// `features` and `layers` are those of samples before, or -1.
  void check_values(std::size_t sample, std::int64_t& features, std::int64_t& layers) const;

  std::shared_ptr<const checkpoint::SafetensorsFile> file_;
  std::vector<std::int64_t> sample_offsets_;
  std::vector<std::int64_t> offsets_;  // samples + 1: of places
  std::vector<std::int64_t> numbers_;  // of each sample's values among those in the file
  at::Tensor places_, positions_;      // positions: [axes, tokens] or undefined
  at::Tensor groups_;                  // [tokens] or undefined
};

/// The tensors that StoredEmbeddings reads; empty if no sample has embeddings.
std::map<std::string, at::Tensor> embedding_tensors(const std::vector<GivenEmbeddings>& samples,
                                                    const std::vector<std::int64_t>& sample_offsets);

}  // namespace layerpress::data
