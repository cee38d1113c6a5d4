#pragma once

#include <cstdint>
#include <optional>

#include "layerpress/graph/operations.h"

namespace layerpress::graph {

/// An operation that reads queries, keys and values, in this order, and whose keys and values engines cache.
struct AttentionHeads {
  std::int64_t heads = 0;
  std::int64_t kv_heads = 0;
  std::int64_t head_dim = 0;   ///< of queries and keys
  std::int64_t value_dim = 0;  ///< of values
};

/// Nothing for other operations.
inline std::optional<AttentionHeads> cached_attention(const Operation& operation) {
  if (const auto* own = std::get_if<Attention>(&operation))
    return AttentionHeads{own->heads, own->kv_heads, own->head_dim, own->value_dim()};
  if (const auto* cross = std::get_if<CrossAttention>(&operation))
    return AttentionHeads{cross->heads, cross->kv_heads, cross->head_dim, cross->head_dim};
  return std::nullopt;
}

}  // namespace layerpress::graph
