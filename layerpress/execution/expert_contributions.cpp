#include "layerpress/execution/expert_contributions.h"

#include <ATen/ATen.h>

namespace layerpress::execution {

void ExpertContributions::add(graph::ValueId expert, const at::Tensor& outputs, const at::Tensor& weights,
                              const at::Tensor& counted) {
  at::Tensor norms = at::linalg_vector_norm(outputs, 2, at::IntArrayRef{1}, /*keepdim=*/false, at::kFloat);
  norms = norms.to(at::kDouble) * weights.to(at::kDouble);
  if (counted.defined()) norms = norms.masked_select(counted);
  Figures& own = figures_[expert];
  own.sum += norms.sum().item<double>();
  own.tokens += norms.size(0);
}

ExpertContributions::Figures ExpertContributions::of(graph::ValueId expert) const {
  const auto found = figures_.find(expert);
  return found == figures_.end() ? Figures() : found->second;
}

}  // namespace layerpress::execution
