#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "layerpress/base/json.h"
#include "layerpress/graph/graph.h"

namespace layerpress::importer {

/// A dimension: factor * tokens^power.
struct Size {
  std::int64_t factor = 1;
  int power = 0;
  bool exact = true;  ///< else an expression that is only known to grow like this
  bool is_tokens() const { return exact && factor == 1 && power == 1; }
  bool operator==(const Size&) const = default;
};

/// What the export wrote down about a value. Lists and numbers have no dtype.
struct ValueType {
  std::string dtype;
  std::vector<Size> shape;
  bool known() const { return !dtype.empty(); }
  bool operator==(const ValueType&) const = default;
};

/// An operator of the export; arguments as in kernels/program/tensor_program.h, {"v": value}.
struct ExportedNode {
  std::string op;
  Json arguments;
  std::size_t module = 0;
  std::int64_t out = -1;
  std::string mixes;  ///< why it may mix tokens, or ""
};

/// A parameter and the checkpoint's tensors that make it.
struct ExportedParameter {
  std::string name;
  struct Source {
    std::string name;
    std::vector<std::int64_t> shape;
  };
  std::vector<Source> sources;
  Json steps;  ///< [{"op", "args", "outs", "several"}], {"source": n} and {"made": n} are references
  Json result;
  /// Of a stacked tensor: what transformers calls each expert's linears where it loads them one by one; empty: it does not.
  std::vector<std::string> splits;
  std::string tied;  ///< the parameter whose tensor this is, or ""
  bool is_stored() const { return sources.size() == 1 && steps.empty(); }
};

/// What experts do between their projections, where it has no name.
struct ExpertGate {
  std::string program;         ///< of one input [rows, features], see kernels/program/tensor_program.h
  bool interleaved = false;    ///< gate and up alternate in the input, else one stands behind the other
  bool alone = true;           ///< whether rows are proved to be treated alone
  std::int64_t row_bytes = 0;  ///< of all that it computes for a row
};

/// A graph file, checked: every value is produced once and before it is read, every operator may be called, every name
/// is printable.
struct ExportedGraph {
  std::string dtype, class_name, way;
  std::vector<std::pair<std::string, std::string>> modules;  ///< path and class
  std::vector<ValueType> types;                              ///< by value
  std::vector<ExportedNode> nodes;
  std::map<std::int64_t, ExportedParameter> parameters;
  std::map<std::int64_t, graph::Constant> constants;
  std::int64_t token_ids = -1, positions = -1, output = -1;
  std::int64_t position_axes = 1;  ///< positions of a token
  std::int64_t least_tokens = 1, most_tokens = 0, vocab_size = 0, max_position_embeddings = 0;
  std::int64_t rotary_tokens = 0;  ///< of a sample, beyond which rotary frequencies change; 0: never
  bool tied_head = false;
  bool own_head = false;  ///< the config ties the head, but the checkpoint stores another weight for it
  std::vector<std::string> layer_classes, linears;
  std::string head;                         ///< path of the module that makes the logits, or ""
  std::map<std::string, ExpertGate> gates;  ///< by the names in experts' nodes

  std::int64_t new_value(ValueType type) {
    types.push_back(std::move(type));
    return static_cast<std::int64_t>(types.size()) - 1;
  }
};

/// The operator that replaces the embeddings of images; the program has no computation for it but our node.
constexpr const char* kMergeImages = "layerpress.merge_images.default";

/// The operator that adds what is made of images to a hidden state: x, the number of the layer.
constexpr const char* kAddImages = "layerpress.add_images.default";

/// Reads graph.json and constants.safetensors of a folder. Throws CheckpointError naming the fault.
ExportedGraph read_exported_graph(const std::filesystem::path& folder);

/// Calls visit(value) for each {"v": value} in an argument.
template <typename Visit>
void each_value(const Json& argument, Visit&& visit) {
  if (argument.is_array()) {
    for (const Json& each : argument) each_value(each, visit);
  } else if (argument.is_object() && argument.contains("v")) {
    visit(json_integer(argument["v"]));
  }
}

/// An argument with replaced(object) in place of each object, at any depth of lists.
template <typename Replaced>
Json with_replaced(const Json& argument, const Replaced& replaced) {
  if (argument.is_object()) return replaced(argument);
  if (!argument.is_array()) return argument;
  Json list = Json::array();
  for (const Json& each : argument) list.push_back(with_replaced(each, replaced));
  return list;
}

}  // namespace layerpress::importer
