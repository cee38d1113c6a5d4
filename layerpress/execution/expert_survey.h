#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <vector>

#include "layerpress/dist/group.h"
#include "layerpress/graph/graph.h"

namespace layerpress::execution {

/// Counts the tokens of all ranks that are routed to each expert of one router. If they are too few, it also determines
/// the additional tokens for calibration: those routed elsewhere with the highest scores (softmax probabilities) for
/// the expert.
class ExpertSurvey {
 public:
  ExpertSurvey(std::int64_t experts, std::int64_t min_tokens);

  /// Adds one batch: logits and routing [tokens, experts].
  void add(const at::Tensor& logits, const at::Tensor& routing);
  /// Sums over ranks; collective. Nothing may be added afterwards.
  void merge(dist::Group& group);

  /// int64 [experts], on the CPU.
  const at::Tensor& routed() const { return routed_; }
  /// Tokens with at least this score are also selected; above 1 if no more are needed. REQUIRES: merge() was called.
  float least_score(std::int64_t expert) const { return least_scores_.at(static_cast<std::size_t>(expert)); }

 private:
  std::int64_t min_tokens_;
  at::Tensor routed_;
  at::Tensor best_;  // fp32 [experts, at most min_tokens]: highest scores of tokens routed elsewhere, on the CPU
  std::vector<float> least_scores_;
};

/// By the routing value.
using ExpertSurveys = std::map<graph::ValueId, ExpertSurvey>;

}  // namespace layerpress::execution
