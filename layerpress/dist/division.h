#pragma once

#include <cstdint>

namespace layerpress::dist {

/// A range of consecutive items.
struct Slice {
  std::int64_t first = 0;
  std::int64_t last = 0;  ///< exclusive
  std::int64_t size() const { return last - first; }
};

/// The items of `rank` when `count` are divided among `ranks`: floor(count * rank / ranks) to floor(count * (rank + 1)
/// / ranks). Sizes differ by at most one. REQUIRES: count >= 0, 0 <= rank < ranks.
Slice partition(std::int64_t count, int rank, int ranks);

/// What a division of work among ranks goes by, the same on all ranks: rough speeds of one rank, and the shapes.
/// Constants and their measurements: docs/distributed.md.
struct DivisionRates {
  double update_flops = 6e10;       ///< column updates and factorizations, per second on one thread
  double network_bytes = 1e9;       ///< collective operations, per second and rank
  double operation_seconds = 1e-4;  ///< minimum duration of a collective operation
};

}  // namespace layerpress::dist
