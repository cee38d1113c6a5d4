#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <vector>

#include "layerpress/dist/group.h"
#include "layerpress/graph/graph.h"

namespace layerpress::execution {

/// How many tokens of all ranks are routed to each expert of one router, and which more it is calibrated on when they are too
/// few: those whose score for it (its softmax probability) is highest among the tokens that went elsewhere.
class ExpertSurvey {
 public:
  ExpertSurvey(std::int64_t experts, std::int64_t min_tokens);

  /// Adds one batch: logits and routing [tokens, experts].
  void add(const at::Tensor& logits, const at::Tensor& routing);
  /// The sum over ranks; collective. Afterwards nothing may be added.
  void merge(dist::Group& group);

  /// int64 [experts], on the CPU.
  const at::Tensor& routed() const { return routed_; }
  /// Tokens with at least this score are selected, too; above 1 where no more are needed. REQUIRES: merge() was called.
  float least_score(std::int64_t expert) const { return least_scores_.at(static_cast<std::size_t>(expert)); }

 private:
  std::int64_t min_tokens_;
  at::Tensor routed_;
  at::Tensor best_;  // fp32 [experts, at most min_tokens]: highest scores of tokens routed elsewhere, on the CPU
  std::vector<float> least_scores_;
};

/// By the value that routes.
using ExpertSurveys = std::map<graph::ValueId, ExpertSurvey>;

}  // namespace layerpress::execution
