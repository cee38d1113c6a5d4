#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "layerpress/gguf/architectures/architecture.h"
#include "layerpress/gguf/container/file.h"

namespace layerpress::gguf {

/// Where the figures about a linear's inputs are in an importance file: a matrix of those that belong to a tensor of a GGUF.
struct InputPlace {
  std::string tensor;         ///< "blk.0.ffn_up_exps.weight"
  std::int64_t matrix = 0;    ///< the expert
  std::int64_t matrices = 1;  ///< of the tensor
  std::int64_t columns = 0;   ///< features of the input
  TiledHeads order{};         ///< of the columns in the file

  /// Figures of the columns in the file's order, or back.
  at::Tensor ordered(const at::Tensor& figures, bool back) const;
};

/// The places of the weight `weight` with this many columns: none for one that llama.cpp does not have, or that it stores in
/// another direction. Throws CheckpointError for a tensor of the language model that llama.cpp does not know.
std::vector<InputPlace> input_places(const Architecture& architecture, const std::string& weight, std::int64_t columns);

/// On what the figures of an importance file were measured.
struct ImportanceOrigin {
  std::vector<std::string> datasets;
  std::uint32_t chunks = 0;      ///< samples
  std::uint32_t chunk_size = 0;  ///< tokens of the longest
};

/// The tensors of an importance file: NAME.in_sum2, the sums of squares of the inputs, and NAME.counts, the numbers of tokens.
inline constexpr const char* kSumsSuffix = ".in_sum2";
inline constexpr const char* kCountsSuffix = ".counts";

/// The file's keys, as llama-imatrix writes them.
Metadata importance_metadata(const ImportanceOrigin& origin);

/// What a file says of the inputs of one linear.
struct ImportanceEntry {
  at::Tensor sums;    ///< of squares, fp32 [columns], >= 0; mostly a view of the file
  double tokens = 0;  ///< 0: the sums say nothing
};

/// An importance file of Layerpress or llama-imatrix. It is mapped; nothing in it is believed.
class ImportanceFile {
 public:
  /// Throws CheckpointError for other files, among them those of the old format (.dat), and for damaged figures.
  static ImportanceFile open(const std::filesystem::path& path);

  const ImportanceOrigin& origin() const { return origin_; }
  std::size_t entries() const { return entries_.size(); }
  /// The figures of a place, if the file has any that are not zero: weights whose errors all weigh nothing would become zero. Throws
  /// CheckpointError if they have another shape.
  std::optional<ImportanceEntry> find(const InputPlace& place) const;

 private:
  struct Entry {
    at::Tensor sums;    // [matrices, columns]
    at::Tensor counts;  // [matrices]
  };
  std::string path_;
  ImportanceOrigin origin_;
  std::map<std::string, Entry> entries_;
};

}  // namespace layerpress::gguf
