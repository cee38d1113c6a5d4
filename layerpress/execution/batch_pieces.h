#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <set>
#include <vector>

#include "layerpress/execution/batch.h"

namespace layerpress::execution {

/// Some of a batch's samples, which pass a stage together.
struct BatchPiece {
  Batch batch;
  std::int64_t first_token = 0;  ///< in the whole batch
  bool is_last = false;          ///< of the batch

  std::set<graph::ValueId> collected;  ///< whose statistics have these samples already; another try leaves them out
  bool is_collecting = false;          ///< statistics are incomplete: there is no other try
  std::map<graph::ValueId, at::Tensor> kept;  ///< what the stage keeps, by what it is stored as

  /// Calls add(), which adds these samples to what is collected of `value`: once, however often they are tried.
  template <typename Add>
  void collect(graph::ValueId value, Add&& add) {
    if (collected.count(value) != 0) return;
    is_collecting = true;
    add();
    is_collecting = false;
    collected.insert(value);
  }
};

/// Runs batches whole while the device's memory suffices, else in pieces: the piece for which it did not is cut in half and
/// run again, and what comes after it is cut as small from the start.
class BatchPieces {
 public:
  /// Calls run_piece for samples of `whole` in their order until all have passed; returns the pieces. A piece comes again, in
  /// halves, when run_piece throws c10::OutOfMemoryError. Throws MemoryError when it is not `divisible`, has one sample, or
  /// was being collected.
  std::vector<BatchPiece> run(const Batch& whole, bool divisible, const std::function<void(BatchPiece&)>& run_piece);

 private:
  std::int64_t most_tokens_ = std::numeric_limits<std::int64_t>::max();  // that pass at once
};

/// What pieces keep of a value, one after the other. Takes it out of them.
at::Tensor join_kept(std::vector<BatchPiece>& pieces, graph::ValueId stored);

}  // namespace layerpress::execution
