#pragma once

#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "layerpress/base/json.h"
#include "layerpress/checkpoint/checkpoint.h"
#include "layerpress/graph/graph.h"
#include "layerpress/model/blocks/architecture.h"

namespace layerpress::rewrite {

/// Tensors beside the graph that make rows of its residual stream: those of a vision part.
struct OutsideWriters {
  std::vector<std::string> rows{};     ///< the stream's features are their first dimension
  std::vector<std::string> columns{};  ///< the stream's features are their last dimension
  std::set<std::string> used{};  ///< those and others of the vision part, which write nothing else into the stream
};

/// A model before any of its tensors is read.
struct Model {
  /// Its tensors by name, with dtype, shape and the way each is made; and its config.
  std::shared_ptr<const checkpoint::Checkpoint> checkpoint;
  model::TracedModel traced;
  /// The traced model of a checkpoint whose config differs from this one's. Throws CheckpointError.
  std::function<model::TracedModel(const checkpoint::Checkpoint&)> trace{};
  /// What makes the rows that the graph takes of images; null: nobody knows. Throws IoError with the reason where it cannot be told.
  std::function<OutsideWriters()> image_writers{};
};

/// What a rewrite changes, in this order.
struct Changes {
  std::vector<checkpoint::Checkpoint::Copy> copies{};      ///< tensors that other names have, too, as they were before
  std::vector<std::string> removed{};                      ///< tensors
  std::vector<checkpoint::ComputedTensor> computed{};      ///< in place of their parts, which may have the same name
  std::map<graph::NodeId, graph::Operation> operations{};  ///< of nodes, in place of those before
  Json config = Json::object();                            ///< merged into the config (RFC 7386)
  bool is_traced_again = false;                            ///< the changed config describes another graph
  std::string text{};                                      ///< a line for people; "": none
};

/// What makes a config say that the head has a weight of its own, to be merged into it.
Json untied_config(const Json& config);

/// A change of a model that reads no tensor and needs no data, such as a rotation that parameters can absorb.
class Rewrite {
 public:
  virtual ~Rewrite() = default;
  /// Equal models give equal changes. Throws RecipeError for a model that cannot be changed so.
  virtual Changes changes(const Model& model) const = 0;
};

/// The changed model. It costs nothing until a tensor is loaded. Throws CheckpointError if tensors' names collide, and
/// RecipeError if a model that is traced again lacks a tensor or has one of another shape.
Model rewritten(Model model, const Changes& changes);

}  // namespace layerpress::rewrite
