#pragma once

#include <cstdint>
#include <vector>

#include "layerpress/execution/stage_runner.h"
#include "layerpress/setup/opening/open_model.h"

namespace layerpress {

/// The last nodes of a model, which make logits of a hidden state: a linear and what follows it, such as a soft cap. They
/// are computed on chunks of tokens, because the logits of all tokens would take much more memory than the hidden states.
class ModelHead {
 public:
  explicit ModelHead(const graph::Graph& graph);

  /// The value to compute for all tokens. If no part of the model can be computed on chunks, its output.
  graph::ValueId hidden() const { return hidden_; }
  const std::vector<graph::NodeId>& nodes() const { return stage_.nodes; }
  /// Memory that they need for so many tokens beside weights, inputs and logits.
  std::uint64_t workspace_bytes(const graph::Graph& graph, std::int64_t tokens, const residency::Placement& placement,
                                int threads) const;

  /// Logits of consecutive tokens of one sample; `hidden` [tokens, features] is their hidden state. REQUIRES: `run` is for
  /// this graph, `parameters` has the weights of the nodes.
  at::Tensor logits(const execution::RunContext& run, const residency::Onload& parameters, const at::Tensor& token_ids,
                    const at::Tensor& hidden) const;

 private:
  graph::ValueId hidden_, output_;
  graph::Stage stage_;
};

}  // namespace layerpress
