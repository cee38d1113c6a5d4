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

}  // namespace layerpress::dist
