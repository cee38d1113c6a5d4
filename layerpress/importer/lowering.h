#pragma once

#include <map>
#include <variant>
#include <vector>

#include "layerpress/importer/exported/layouts.h"
#include "layerpress/model/blocks/architecture.h"

namespace layerpress::importer {

/// One of our nodes in place of operators of an export. Inputs are values [tokens, features].
struct Lowered {
  graph::Operation operation;
  std::vector<std::int64_t> inputs;
  std::string name{};       ///< of a linear's module in the checkpoint, or "" for the module of its operator
  std::string tied_name{};  ///< of a linear's module in the export, if the checkpoint has the weight under another name
};

/// The experts of a layer, each with projections of its own.
struct LoweredExperts {
  std::int64_t x = -1, logits = -1, routing = -1;
  std::int64_t features = 0, intermediate = 0;
  graph::Operation gate;  ///< of the outputs of gate and up, or of up alone
  struct Names {
    std::string gate, up, down;  ///< weights; without a gate ""
  };
  std::vector<Names> experts;
  bool has_bias = false;                        ///< linears have biases, by the names of their weights
  std::vector<model::StackedTensor> stacked{};  ///< the tensors that the checkpoint may have instead
};

/// "...gate_proj.bias" of "...gate_proj.weight".
std::string bias_of(const std::string& weight);

using Lowering = std::variant<Lowered, LoweredExperts>;

/// By the exported value that the nodes compute.
using Lowerings = std::map<std::int64_t, Lowering>;

/// Finds the operators that are certainly ours: embedding, linear, norms, rotary embeddings (whose `tables` it adds), attention,
/// gated activation, experts, add.
/// Adds nodes to the export that make the routing of experts a matrix [tokens, experts].
Lowerings lower(ExportedGraph& graph, Layouts& layouts, std::vector<graph::RopeTable>& tables);

}  // namespace layerpress::importer
