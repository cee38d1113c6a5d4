#include "layerpress/dist/division.h"

#include "layerpress/base/error.h"

namespace layerpress::dist {

Slice partition(std::int64_t count, int rank, int ranks) {
  if (count < 0 || rank < 0 || rank >= ranks)
    throw InternalError("[dist.partition] part {} of {} of {} items", rank, ranks, count);
  // floor(count * i / ranks), computed in two parts because the product may overflow.
  const auto bound = [&](std::int64_t i) { return count / ranks * i + count % ranks * i / ranks; };
  return {bound(rank), bound(rank + 1)};
}

}  // namespace layerpress::dist
