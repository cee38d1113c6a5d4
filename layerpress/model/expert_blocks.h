#pragma once

#include <functional>
#include <string>
#include <vector>

#include "layerpress/graph/tracer.h"
#include "layerpress/model/architecture.h"
#include "layerpress/model/decoder_blocks.h"

namespace layerpress::model {

/// What distinguishes one mixture of experts from another.
struct ExpertBlock {
  std::string name = "mlp";       ///< of the module
  std::string class_name;         ///< "Qwen3MoeSparseMoeBlock"
  std::string router_class_name;  ///< of module "gate", which is no "Linear": "Qwen3MoeTopKRouter"
  graph::Tracer::ExpertNames experts;
  std::int64_t intermediate_size = 0;  ///< of an expert
  graph::Route route;
  /// An expert that sees all tokens, in module `shared_name`; 0: none.
  std::int64_t shared_intermediate_size = 0;
  std::string shared_name = "shared_expert";
  std::string shared_class_name;
  bool shared_gate = false;  ///< its output is weighted by the sigmoid of a linear "<shared_name>_gate" of one feature
};

/// Router, experts, shared expert.
graph::Symbol expert_block(graph::Tracer& tracer, const DecoderConfig& config, const ExpertBlock& block,
                           graph::Symbol x);

/// How many experts there are (else num_local_experts says so), how many a token gets, and how wide they are; checked.
/// Throws CheckpointError.
struct ExpertConfig {
  std::int64_t experts = 0;
  std::int64_t top_k = 0;
  std::int64_t intermediate_size = 0;
};
struct ExpertKeys {
  const char* experts = "num_experts";
  const char* top_k = "num_experts_per_tok";
  const char* intermediate_size = "moe_intermediate_size";
};
ExpertConfig parse_expert_config(const Json& config, const ExpertConfig& defaults, const ExpertKeys& keys);

/// Experts by the class names that families without peculiarities have: "Qwen3Moe" -> Qwen3MoeSparseMoeBlock,
/// Qwen3MoeTopKRouter, Qwen3MoeMLP.
ExpertBlock sparse_block(const std::string& class_prefix, const ExpertConfig& experts);

/// A language model of pre-norm layers with experts in the MLP's place.
struct ExpertDecoder {
  std::string class_prefix;  ///< as causal_language_model takes it
  DecoderConfig config;
  ExpertBlock block;
  std::vector<bool> sparse{};  ///< which layers have experts, the others have an MLP; empty: all have
};

/// Traces the model; `attention(layer)` says how that layer attends.
TracedModel expert_language_model(const ExpertDecoder& decoder, const Json& raw_config,
                                  const std::function<SelfAttention(std::int64_t)>& attention);

/// Which layers have experts: those not in mlp_only_layers whose number, counted from 1, is a multiple of decoder_sparse_step.
std::vector<bool> sparse_layers(const Json& config, std::int64_t num_layers);

/// Fills in what the graph's experts, if it has any, mean for readers and for checkpoints that store a layer's experts as
/// `experts.gate_up_proj` [experts, 2 * intermediate, hidden] and `experts.down_proj` [experts, hidden, intermediate].
void describe_experts(TracedModel& model);

}  // namespace layerpress::model
