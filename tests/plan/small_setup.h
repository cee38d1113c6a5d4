#pragma once

#include <ATen/ATen.h>

#include <algorithm>
#include <limits>
#include <memory>
#include <string>
#include <variant>

#include "layerpress/modifier/all_modifiers.h"
#include "layerpress/plan/run_plan.h"
#include "tests/modifier/quantizers.h"
#include "tests/setup/zero_model.h"

namespace layerpress::plan {

/// The setup of a run with a small Llama whose linears but the head are compressed.
class SmallSetup {
 public:
  SmallSetup(const std::string& modifier, const residency::Placement& placement)
      : modifier_(test::make_quantizer(
            modifier, {{"targets", {"Linear"}}, {"ignore", {"lm_head"}}, {"scheme", "W4A16"}}, "test")) {
    const Json config = {{"architectures", {"LlamaForCausalLM"}},
                         {"model_type", "llama"},
                         {"hidden_size", 256},
                         {"intermediate_size", 768},
                         {"num_hidden_layers", 3},
                         {"num_attention_heads", 4},
                         {"num_key_value_heads", 2},
                         {"vocab_size", 160},
                         {"tie_word_embeddings", false}};
    run.model = setup::open_zero_model(folder_, config);
    run.subgraphs = setup::cut_model(run.model.traced, {});
    run.placement = placement;
    run.budget = run.device_budget = std::numeric_limits<std::uint64_t>::max();
    for (graph::NodeId n = 0; n < static_cast<graph::NodeId>(run.model.traced.graph.nodes.size()); ++n) {
      const graph::Node& node = run.model.traced.graph.nodes[n];
      const std::string& name = run.model.traced.graph.module_name(node);
      if (std::holds_alternative<graph::Linear>(node.operation) && name != "lm_head")
        run.assignments.linears[n] = {modifier_.get(), modifier_->scheme_for({name, {"Linear"}}), at::kBFloat16,
                                      placement.device};
    }
  }

  setup::RunSetup run;

 private:
  test::TemporaryFolder folder_;
  std::unique_ptr<compression::Quantizer> modifier_;
};

/// Over all subgraphs.
inline std::uint64_t most(const RunPlan& plan, std::uint64_t SubgraphPlan::*what) {
  std::uint64_t most = 0;
  for (const SubgraphPlan& subgraph : plan.memory.subgraphs) most = std::max(most, subgraph.*what);
  return most;
}

}  // namespace layerpress::plan
