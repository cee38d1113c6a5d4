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

/// The rough speeds of one rank by which ranks divide work, the same on all ranks. The defaults are those of a CPU
/// (docs/distributed.md); plan/division_rates.h measures those of other devices.
struct DivisionRates {
  double update_flops = 6e10;       ///< column updates and factorizations, per second on one thread
  double network_bytes = 1e9;       ///< collective operations, per second and rank
  double operation_seconds = 1e-4;  ///< minimum duration of a collective operation
};

}  // namespace layerpress::dist
