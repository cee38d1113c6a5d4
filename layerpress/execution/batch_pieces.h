#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <set>
#include <vector>

#include "layerpress/execution/batch.h"

namespace layerpress::execution {

/// Some of a batch's samples, which pass through a stage together.
struct BatchPiece {
  Batch batch;
  std::int64_t first_token = 0;  ///< position in the whole batch
  bool is_last = false;          ///< whether it is the last piece of the batch

  std::set<graph::ValueId> collected;  ///< values whose statistics already include these samples; a retry skips them
  bool is_collecting = false;          ///< statistics are being updated: no retry is possible
  std::map<graph::ValueId, at::Tensor> kept;  ///< values that the stage keeps, by their id in the store

  /// Calls add(), which adds these samples to the statistics of `value`. Calls it only once, even if the samples are
  /// retried.
  template <typename Add>
  void collect(graph::ValueId value, Add&& add) {
    if (collected.count(value) != 0) return;
    is_collecting = true;
    add();
    is_collecting = false;
    collected.insert(value);
  }
};

/// Runs whole batches as long as the device's memory suffices. If it does not, the piece is cut in half and run again,
/// and all later pieces have at most that size.
class BatchPieces {
 public:
  /// Calls run_piece for the samples of `whole` in order, and returns the pieces. If run_piece throws
  /// c10::OutOfMemoryError, the piece is retried in halves. Throws MemoryError if it is not `divisible`, has only one
  /// sample, or was being collected.
  std::vector<BatchPiece> run(const Batch& whole, bool divisible, const std::function<void(BatchPiece&)>& run_piece);

  /// Tokens of the largest piece that is tried.
  std::int64_t most_tokens() const { return most_tokens_; }

 private:
  std::int64_t most_tokens_ = std::numeric_limits<std::int64_t>::max();  // in one piece
};

/// The kept tensors of a value, concatenated over the pieces. Removes them from the pieces.
at::Tensor join_kept(std::vector<BatchPiece>& pieces, graph::ValueId stored);

}  // namespace layerpress::execution
