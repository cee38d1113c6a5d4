#pragma once

#include <ATen/ATen.h>

#include <string>
#include <vector>

#include "layerpress/execution/batch.h"
#include "layerpress/graph/partition.h"
#include "layerpress/graph/tracer.h"
#include "tests/residency/memory_weights.h"

namespace layerpress::test {

/// Two decoder layers of 32 features with random weights.
struct SmallModel {
  graph::Graph graph;
  MemoryWeights weights;

  SmallModel() {
    graph::Tracer tracer;
    graph::RopeTable rope;
    rope.inverse_frequencies = {1.0, 0.3, 0.1, 0.03};
    tracer.add_rope_table(rope);
    graph::Symbol x = tracer.embedding("embed", tracer.tokens(), 50, 32);
    for (int layer = 0; layer < 2; ++layer) {
      const auto scope = tracer.module(fmt::format("layers.{}", layer), "Layer");
      const graph::Symbol h = tracer.rms_norm("norm", "Norm", x, 1e-5);
      const graph::Symbol q = tracer.rotary(tracer.linear("q", h, 32), 8, 0);
      const graph::Symbol k = tracer.rotary(tracer.linear("k", h, 16), 8, 0);
      const graph::Symbol v = tracer.linear("v", h, 16);
      x = tracer.add(x, tracer.linear("o", tracer.attention(q, k, v, {4, 2, 8, 0.35, 0}), 32));
      const graph::Symbol m = tracer.rms_norm("norm2", "Norm", x, 1e-5);
      const graph::Symbol inner =
          tracer.gated_activation("silu", tracer.linear("gate", m, 64), tracer.linear("up", m, 64));
      x = tracer.add(x, tracer.linear("down", inner, 32));
    }
    graph = tracer.finish(tracer.linear("head", x, 50));
    at::manual_seed(21);
    for (const graph::Node& node : graph.nodes)
      for (const graph::WeightUse& use : graph::weights_of(node.operation))
        weights.tensors[use.name] = use.shape.size() == 1 ? at::ones(use.shape) : at::randn(use.shape) * 0.3;
  }

  std::vector<graph::Subgraph> cut(const std::string& class_name) const {
    return graph::partition(graph, [&](const graph::Module& module) { return module.class_name == class_name; });
  }
};

/// Batches of random tokens with the given sample lengths, `per_batch` samples each.
inline std::vector<execution::Batch> random_batches(const std::vector<std::int64_t>& lengths, std::size_t per_batch) {
  at::manual_seed(22);
  std::vector<execution::Batch> batches;
  for (std::size_t i = 0; i < lengths.size(); ++i) {
    if (i % per_batch == 0) batches.emplace_back();
    execution::Batch& batch = batches.back();
    batch.offsets.push_back(batch.tokens() + lengths[i]);
    const at::Tensor ids = at::randint(0, 50, {lengths[i]}, at::kLong);
    batch.token_ids = batch.token_ids.defined() ? at::cat({batch.token_ids, ids}) : ids;
  }
  return batches;
}

}  // namespace layerpress::test
