#include "layerpress/execution/expert_survey.h"

#include <ATen/ATen.h>

#include <algorithm>

namespace layerpress::execution {
namespace {

/// Higher than any score.
constexpr float kNone = 2;

at::Tensor highest(const at::Tensor& scores, std::int64_t count) {
  return std::get<0>(at::topk(scores, std::min(count, scores.size(1)), /*dim=*/1));
}

}  // namespace

ExpertSurvey::ExpertSurvey(std::int64_t experts, std::int64_t min_tokens)
    : min_tokens_(min_tokens), routed_(at::zeros({experts}, at::kLong)), best_(at::empty({experts, 0}, at::kFloat)) {}

void ExpertSurvey::add(const at::Tensor& logits, const at::Tensor& routing) {
  const at::Tensor chosen = routing.ne(0);
  routed_.add_(chosen.sum(0).cpu());
  if (min_tokens_ == 0) return;
  const at::Tensor scores = at::softmax(logits, -1, at::kFloat).masked_fill_(chosen, -1).t();
  best_ = highest(at::cat({best_, highest(scores, min_tokens_).cpu()}, 1), min_tokens_);
}

void ExpertSurvey::merge(dist::Group& group) {
  if (group.size() > 1) {
    group.all_reduce(routed_);
    // Every rank sends the same number of scores, filled up if it saw too few tokens.
    at::Tensor sent = at::full({best_.size(0), min_tokens_}, -1, at::kFloat);
    sent.narrow(1, 0, best_.size(1)).copy_(best_);
    if (min_tokens_ > 0) best_ = at::cat(group.all_gather(sent), 1);
  }
  for (std::int64_t expert = 0; expert < routed_.size(0); ++expert) {
    const std::int64_t missing = min_tokens_ - routed_[expert].item<std::int64_t>();
    float least = kNone;
    if (missing > 0) {
      const at::Tensor own = best_[expert];
      const at::Tensor candidates = own.masked_select(own.ge(0));
      const std::int64_t count = std::min(missing, candidates.numel());
      if (count > 0) least = std::get<0>(at::topk(candidates, count))[count - 1].item<float>();
    }
    least_scores_.push_back(least);
  }
}

}  // namespace layerpress::execution
