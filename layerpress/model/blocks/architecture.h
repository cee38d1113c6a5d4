#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "layerpress/base/error.h"
#include "layerpress/base/json.h"
#include "layerpress/checkpoint/checkpoint.h"
#include "layerpress/graph/graph.h"

namespace layerpress::model {

/// A config asks for something that a family has in transformers, but not in its graph here.
class UnknownVariantError : public CheckpointError {
 public:
  using CheckpointError::CheckpointError;
};

/// A tensor with a part of every expert of a layer that no FusedTensor describes, because its members do not lie one after the
/// other: matrices have a row per input, or biases or columns of gate and up alternate.
struct StackedTensor {
  std::string name;
  std::vector<std::int64_t>
      shape;                ///< [experts, inputs, outputs], [experts, outputs, inputs], or [experts, outputs] of biases
  bool transposed = false;  ///< [experts, inputs, outputs]
  bool alternating = false;  ///< outputs of the members of an expert alternate; else one member follows the other
  std::vector<std::vector<std::string>> members{};  ///< of each expert, with equally many outputs: gate and up, or one
  bool divided = false;  ///< transformers has the members of a quantized model as tensors of their own
};

/// A model's graph, and facts about the model that other rooms need.
struct TracedModel {
  graph::Graph graph;
  std::int64_t vocab_size = 0;
  std::int64_t max_position_embeddings = 0;
  /// Of a sample, beyond which an imported model's rotary frequencies change, or its table of positions ends; 0: any number.
  std::int64_t most_tokens = 0;
  bool tied_head = false;  ///< the head reads the embedding's weight
  bool own_head = false;   ///< of an imported graph: the head reads its own weight, although the config ties it
  std::vector<std::string> default_sequential_targets;  ///< class names: transformers' _no_split_modules
  /// Module suffixes whose weights inference engines fuse into one ("self_attn.q_proj", ...). The members of a list
  /// must be quantized alike or not at all.
  std::vector<std::vector<std::string>> fused_modules;
  /// Full names of modules whose linears inference engines run as one ("model.layers.0.mlp.experts"). The linears of a
  /// module must be quantized alike or not at all.
  std::vector<std::string> uniform_modules;
  /// Tensors of newer checkpoints that contain several of the graph's weights.
  std::vector<checkpoint::FusedTensor> fused_tensors;
  /// The same by layer: its stacked tensors, which a checkpoint has all or none of.
  std::vector<std::vector<StackedTensor>> stacked_tensors{};
  /// Of an imported graph: the dtype that it computes in ("float32"), and the linears and experts that have no node of
  /// their own, so that recipes do not reach them.
  std::string computing_dtype{};
  std::vector<std::string> left_out{};
  std::map<std::string, std::string> left_out_reasons{};  ///< where one is known
  /// Further names of modules: of an imported graph those that transformers has for them, and "lm_head" for its head.
  std::map<std::string, std::vector<std::string>> aliases{};
};

/// Modules that engines fuse.
struct FusedModules {
  const std::vector<std::string>& suffixes;  ///< the list in TracedModel::fused_modules
  std::vector<std::string> names;            ///< in full, in its order; the model may lack some
};

/// Those that `module` belongs to.
std::vector<FusedModules> fused_with(const TracedModel& model, const std::string& module);

/// A supported architecture: its names in config.json, and the function that traces its forward pass.
struct Architecture {
  std::string model_type;  ///< config.json's model_type, "llama"
  std::string class_name;  ///< its entry in config.json's architectures, "LlamaForCausalLM"
  std::function<TracedModel(const Json& config)> trace;
  std::string special{};  ///< its differences from Llama, in a few words
};

/// All architectures, one line each. A new one is a file with its trace function, and a line here.
const std::vector<Architecture>& architectures();

/// Finds the architecture by `architectures[0]`, else by model_type, and traces it. Throws CheckpointError for an
/// unknown one, naming it, the nearest known one, and all known ones.
TracedModel trace_model(const Json& config);

/// Whether trace_model knows the architecture.
bool is_built_in(const Json& config);

/// Checks that the checkpoint has every weight that the graph reads, with the shape that config.json implies and a
/// float dtype. Throws CheckpointError naming the tensor and both shapes.
void check_weights(const graph::Graph& graph, const checkpoint::Checkpoint& checkpoint);

}  // namespace layerpress::model
