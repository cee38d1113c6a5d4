#pragma once

#include <functional>
#include <string>
#include <vector>

#include "layerpress/graph/tracer.h"
#include "layerpress/model/blocks/architecture.h"
#include "layerpress/model/blocks/decoder_blocks.h"

namespace layerpress::model {

/// The properties in which mixtures of experts differ.
struct ExpertBlock {
  std::string name = "mlp";       ///< name of the module
  std::string class_name;         ///< "Qwen3MoeSparseMoeBlock"
  std::string router_class_name;  ///< class of module "gate", which is not "Linear": "Qwen3MoeTopKRouter"
  graph::Tracer::ExpertNames experts;
  std::int64_t intermediate_size = 0;  ///< intermediate size of an expert
  graph::Route route;
  /// Size of an expert that sees all tokens, in module `shared_name`; 0: none.
  std::int64_t shared_intermediate_size = 0;
  std::string shared_name = "shared_expert";
  std::string shared_class_name;
  bool shared_gate = false;  ///< weight its output by the sigmoid of a one-feature linear "<shared_name>_gate"
};

/// Router, experts and shared expert of a layer. Throws CheckpointError.
graph::Symbol expert_block(graph::Tracer& tracer, const DecoderConfig& config, const ExpertBlock& block,
                           std::int64_t layer, graph::Symbol x);

/// The number of experts (in num_local_experts if not under its own key), the number of experts per token, and their
/// width, all checked. Throws CheckpointError.
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

/// An expert block with the usual class names: "Qwen3Moe" -> Qwen3MoeSparseMoeBlock, Qwen3MoeTopKRouter, Qwen3MoeMLP.
ExpertBlock sparse_block(const std::string& class_prefix, const ExpertConfig& experts);

/// A language model of pre-norm layers with experts in place of the MLP.
struct ExpertDecoder {
  std::string class_prefix;  ///< as for causal_language_model
  DecoderConfig config;
  ExpertBlock block;
  std::vector<bool> sparse{};  ///< whether a layer has experts instead of an MLP; empty: all have experts
};

/// Traces the model; `attention(layer)` describes the attention of a layer.
TracedModel expert_language_model(const ExpertDecoder& decoder, const Json& raw_config,
                                  const std::function<SelfAttention(std::int64_t)>& attention);

/// The layers with experts: those not in mlp_only_layers whose number, counted from 1, is a multiple of
/// decoder_sparse_step.
std::vector<bool> sparse_layers(const Json& config, std::int64_t num_layers);

/// The module whose experts' linears are the members of a stacked tensor of weights.
std::string list_of_experts(const StackedTensor& stacked);

/// If the graph has experts, fills in what readers need to know of them, and the fused tensors of checkpoints that
/// store a layer's experts as `experts.gate_up_proj` [experts, 2 * intermediate, hidden] and `experts.down_proj`
/// [experts, hidden, intermediate].
void describe_experts(TracedModel& model);

}  // namespace layerpress::model
