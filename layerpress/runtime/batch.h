#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <vector>

#include "layerpress/graph/graph.h"
#include "layerpress/runtime/onload.h"

namespace layerpress::runtime {

/// Whole samples packed along the token axis.
struct Batch {
  at::Tensor token_ids;                  ///< int64 [tokens], on the CPU
  std::vector<std::int64_t> offsets{0};  ///< samples + 1; sample i is tokens [offsets[i], offsets[i + 1])

  std::int64_t tokens() const { return offsets.back(); }
};

/// What nodes need of a batch beside their inputs, derived on demand and kept while one stage runs on it.
class BatchContext {
 public:
  BatchContext(const Batch& batch, const graph::Graph& graph, const Placement& placement)
      : batch_(batch), graph_(graph), placement_(placement) {}

  const Batch& batch() const { return batch_; }
  at::Tensor token_ids() const;

  /// cosine and sine: fp32 [rows, pairs], rounded to the computing dtype as transformers does; rows: int64 [tokens].
  struct Angles {
    at::Tensor cosine, sine, rows;
  };
  const Angles& angles(std::int64_t table);

 private:
  const Batch& batch_;
  const graph::Graph& graph_;
  Placement placement_;
  std::map<std::int64_t, Angles> angles_;
};

}  // namespace layerpress::runtime
