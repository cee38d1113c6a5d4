#pragma once

#include <cstdint>
#include <filesystem>
#include <vector>

#include "layerpress/base/progress.h"
#include "layerpress/data/sample_images.h"

namespace layerpress::data {

/// The concatenated token ids of all samples, and their images.
struct CalibrationSet {
  std::vector<std::int32_t> tokens;
  /// samples + 1 entries: sample i is tokens [sample_offsets[i], sample_offsets[i + 1]).
  std::vector<std::int64_t> sample_offsets{0};
  std::vector<SampleImages> images = {};  ///< of each sample; empty if no sample has images
  /// For each token, whether it counts in statistics (1) or is only context (0); empty if all count.
  std::vector<std::uint8_t> loss_mask = {};

  /// The place of each sample among those of all ranks; empty if they are consecutive.
  std::vector<std::int64_t> places = {};

  std::int64_t sample_count() const { return static_cast<std::int64_t>(sample_offsets.size()) - 1; }
  std::int64_t token_count() const { return sample_offsets.back(); }
  /// Tokens that count.
  std::int64_t counted_tokens() const;
  /// Adds the samples of another set behind the own ones. Both have loss masks, or neither has.
  void append(const CalibrationSet& samples);
  /// Takes out the samples with fewer tokens. Returns their places among those of all ranks, or, where these are not known yet, among the
  /// set's own.
  std::vector<std::int64_t> take_shorter(std::int64_t least);
  std::int64_t image_count(std::int64_t sample) const {
    return images.empty() ? 0 : images.at(static_cast<std::size_t>(sample)).count();
  }
};

/// Selects the samples and their lengths; the fields correspond to the data options of the command line.
struct DatasetOptions {
  std::string dataset;  ///< A file (.jsonl .json .csv .parquet .txt, or .safetensors made by prepare) or a datasets id.
  std::string split = "train";
  std::string text_column = "text";
  std::int64_t num_samples = 512;
  std::int64_t max_seq_length = 2048;
  bool shuffle = false;
  std::uint64_t seed = 0;
  bool concatenate = false;
  bool use_loss_mask = false;  ///< only the assistant's tokens count, or those that rows mark
  bool may_be_empty = false;   ///< an empty result is not an error
  bool has_tokenizer = true;   ///< of the model; false for a GGUF whose tokenizer is none, so that rows must be tokens
};

/// Reads a token file as prepare writes it: `input_ids` I32 (or I64) [tokens], `sample_offsets` I64 [samples + 1], a
/// loss mask and images. Pixels stay in the mapped file. Validates everything; throws DataError naming the file and the
/// fault.
CalibrationSet read_token_file(const std::filesystem::path& path);

/// Writes such a file (atomic).
void write_token_file(const std::filesystem::path& path, const CalibrationSet& set);

/// Consecutive whole samples that pass through the model together: samples [first_sample, last_sample).
struct BatchRange {
  std::int64_t first_sample = 0;
  std::int64_t last_sample = 0;
};

/// Packs samples in order into batches of at most `batch_tokens` tokens (a longer sample is a batch of its own) and at
/// most as many rows of images, where an image has `image_rows` rows. REQUIRES: batch_tokens > 0. Every sample is in
/// exactly one batch; the split depends only on lengths and numbers of images.
std::vector<BatchRange> pack_batches(const CalibrationSet& set, std::int64_t batch_tokens, std::int64_t image_rows = 0);

/// Returns 0..n-1 shuffled: Fisher-Yates from the end with splitmix64 seeded by `seed`. The helper in python/ does the
/// same.
std::vector<std::int64_t> shuffled_order(std::int64_t n, std::uint64_t seed);

}  // namespace layerpress::data
