#include "layerpress/execution/batch_pieces.h"

#include <ATen/ATen.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <deque>
#include <utility>

#include "layerpress/base/error.h"

namespace layerpress::execution {
namespace {

/// Samples [first, last) of a piece being cut, without its kept values.
BatchPiece part_of(const BatchPiece& piece, std::size_t first, std::size_t last) {
  const std::vector<std::int64_t>& offsets = piece.batch.offsets;
  BatchPiece part;
  part.batch.token_ids = piece.batch.token_ids.slice(0, offsets[first], offsets[last]);
  if (const auto& places = piece.batch.places; !places.empty())
    part.batch.places.assign(places.begin() + static_cast<std::ptrdiff_t>(first),
                             places.begin() + static_cast<std::ptrdiff_t>(last));
  part.batch.offsets.clear();
  for (std::size_t i = first; i <= last; ++i) part.batch.offsets.push_back(offsets[i] - offsets[first]);
  if (const auto& embeddings = piece.batch.embeddings; !embeddings.empty())
    part.batch.embeddings.assign(embeddings.begin() + static_cast<std::ptrdiff_t>(first),
                                 embeddings.begin() + static_cast<std::ptrdiff_t>(last));
  if (const at::Tensor& positions = piece.batch.positions; positions.defined())
    part.batch.positions = positions.slice(1, offsets[first], offsets[last]);
  if (const at::Tensor& counted = piece.batch.counted; counted.defined()) {
    const at::Tensor own = counted.ge(offsets[first]).logical_and(counted.lt(offsets[last]));
    part.batch.counted = counted.masked_select(own) - offsets[first];
    part.batch.counted_tokens = part.batch.counted.numel();
  }
  part.first_token = piece.first_token + offsets[first];
  part.is_last = piece.is_last && last + 1 == offsets.size();
  part.collected = piece.collected;
  return part;
}

std::size_t samples_of(const BatchPiece& piece) { return piece.batch.offsets.size() - 1; }

/// Two pieces of whole samples with about equal numbers of tokens.
std::pair<BatchPiece, BatchPiece> halves_of(const BatchPiece& piece) {
  const std::vector<std::int64_t>& offsets = piece.batch.offsets;
  const auto half = std::lower_bound(offsets.begin(), offsets.end(), piece.batch.tokens() / 2);
  const std::size_t middle =
      std::clamp<std::size_t>(static_cast<std::size_t>(half - offsets.begin()), 1, samples_of(piece) - 1);
  return {part_of(piece, 0, middle), part_of(piece, middle, samples_of(piece))};
}

}  // namespace

std::vector<BatchPiece> BatchPieces::run(const Batch& whole, bool divisible,
                                         const std::function<void(BatchPiece&)>& run_piece) {
  std::deque<BatchPiece> waiting(1);
  waiting.front().batch = whole;
  waiting.front().is_last = true;
  std::vector<BatchPiece> done;
  const auto cut = [&](const BatchPiece& piece) {
    auto [first, second] = halves_of(piece);
    waiting.push_front(std::move(second));
    waiting.push_front(std::move(first));
  };
  while (!waiting.empty()) {
    BatchPiece piece = std::move(waiting.front());
    waiting.pop_front();
    const bool can_cut = divisible && samples_of(piece) > 1;
    if (can_cut && piece.batch.tokens() > most_tokens_) {
      cut(piece);
      continue;
    }
    try {
      run_piece(piece);
      done.push_back(std::move(piece));
    } catch (const c10::OutOfMemoryError&) {
      if (!can_cut || piece.is_collecting)
        throw MemoryError(
            "[execution.memory] {} tokens of calibration data do not fit into the device's memory; use a smaller "
            "--device-memory-budget or --batch-tokens, smaller subgraphs (--sequential-targets) or a shorter "
            "--max-seq-length",
            piece.batch.tokens());
      piece.kept.clear();
      most_tokens_ = std::max<std::int64_t>(1, piece.batch.tokens() / 2);
      cut(piece);
    }
  }
  return done;
}

at::Tensor join_kept(std::vector<BatchPiece>& pieces, graph::ValueId stored) {
  std::vector<at::Tensor> rows;
  for (BatchPiece& piece : pieces) rows.push_back(std::move(piece.kept.extract(stored).mapped()));
  return rows.size() == 1 ? rows.front() : at::cat(rows);
}

}  // namespace layerpress::execution
